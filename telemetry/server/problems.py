"""What goes wrong with a request, as OpenTSDB tells it."""

from __future__ import annotations

__all__ = ["Problem", "error_body"]


class Problem(Exception):  # noqa: N818 - it is an answer
    """The request cannot be answered; status and sentence go to the client."""

    def __init__(self, status: int, message: str, details: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.details = details


def error_body(status: int, message: str, details: str = "") -> dict[str, object]:
    """Return OpenTSDB's error object."""
    error: dict[str, object] = {"code": status, "message": message}
    if details:
        error["details"] = details
    return {"error": error}
