"""What the controller reads and writes in the state server; each step waits out a server that is being restarted."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from kvstore.control import Control, LaunchRecord
from kvstore.endpoint import Endpoint
from kvstore.errors import StaleLaunchError
from kvstore.fence import begin_launch, current_launch
from kvstore.patience import Patience
from kvstore.state import State
from resilience.roster import Exclusion

__all__ = ["Records"]

PATIENCE_S = 60.0


class Records:
    """The records of one job.

    Parameters
    ----------
    endpoint
        The job's state server.

    Raises
    ------
    StateUnavailableError
        From every method, if the server does not answer within a minute.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self._client = endpoint.connect()
        self._endpoint = endpoint
        self._patience = Patience(endpoint, PATIENCE_S)

    def next_launch(self) -> int:
        """Raise the launch number and return it: from here on the old launch writes no more."""
        previous = self._patience.call(lambda: current_launch(self._client, self._endpoint))
        launch = 0 if previous is None else previous + 1
        self._patience.call(lambda: self._begin(launch))
        return launch

    def _begin(self, launch: int) -> None:
        try:
            begin_launch(self._client, self._endpoint, launch)
        except StaleLaunchError as stale:
            if stale.current != launch:  # else the answer of our first attempt was lost
                raise

    def write_launch(self, record: LaunchRecord) -> None:
        """Store the record of a launch."""
        self._patience.call(lambda: self._control(record.launch).write_launch(record))

    def remember(self, exclusions: Sequence[Exclusion], hosts: Collection[str]) -> None:
        """Store who of ``hosts`` is excluded and since when; what is stored of other allocations' hosts stays."""
        others = [exclusion for exclusion in self.remembered() if exclusion.host not in hosts]
        since_s = {exclusion.host: exclusion.since_s for exclusion in (*others, *exclusions)}
        self._patience.call(lambda: self._control(0).write_exclusions(since_s))

    def remembered(self) -> list[Exclusion]:
        """Return who was excluded when :meth:`remember` was last called, also by a job before this one."""
        since_s = self._patience.call(self._control(0).read_exclusions)
        return [Exclusion(host, moment) for host, moment in since_s.items()]

    def last_request_id(self) -> str:
        """Return the id of the newest request, where a reader of new ones begins."""
        return self._patience.call(self._control(0).last_request_id)

    def signs(self, launch: int) -> tuple[int, str | None]:
        """Return a launch's signs of life: the number of State's transactions so far, and the step that it told of."""
        commits = State(self._client, self._endpoint, launch, patience_s=PATIENCE_S).commits()
        return commits, self._patience.call(self._control(launch).read_progress)

    def _control(self, launch: int) -> Control:
        return Control(self._client, self._endpoint, launch)
