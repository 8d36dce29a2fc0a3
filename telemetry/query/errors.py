"""What is wrong with a query."""

from __future__ import annotations

__all__ = ["BadQueryError", "QueryTooLargeError"]


class BadQueryError(ValueError):
    """The query says something that has no meaning; the message names the part."""


class QueryTooLargeError(BadQueryError):
    """The answer, or the work for it, would be beyond what one query may take."""
