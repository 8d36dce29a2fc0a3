"""Verdicts: which device is slow, and how sure we are."""

from detectors.verdict import Verdict

__all__ = ["Verdict"]
