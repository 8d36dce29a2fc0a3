"""Unix time for one process, which goes on evenly when somebody sets the machine's clock."""

from __future__ import annotations

import time


class SteadyClock:
    """The machine's clock as it was when this object was made, plus the time that has passed since.

    What is decided by how long something has lasted must not depend on the machine's clock, which may be set by hours,
    in either direction, while a job runs; yet these times are also shown, and kept beyond the job.
    """

    def __init__(self) -> None:
        self._offset_s = time.time() - time.monotonic()

    def now_s(self) -> float:
        """Return the Unix time."""
        return self._offset_s + time.monotonic()
