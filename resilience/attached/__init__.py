"""A Ray cluster that runs already: used as it is, and left as it was."""

from __future__ import annotations
