"""A job that is asked to end."""

from __future__ import annotations


class StopRequested(Exception):  # noqa: N818 - a request, not an error, so it is no LaggardError either
    """The user or the resource manager wants the job to end (Ctrl-C, SIGTERM)."""

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.signum = signum
