"""The root of every error that laggard raises on purpose.

Each package has a tree of its own below it, in its module ``errors``; ``except LaggardError`` catches them all.
Every error can be pickled, since errors cross process boundaries, and has the values it is about as attributes.
"""

from __future__ import annotations

__all__ = ["LaggardError"]


class LaggardError(Exception):
    """Base of every error that laggard raises on purpose."""
