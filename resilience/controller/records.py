"""What the controller reads and writes in the state server, and the requests that it receives through it.

Everything here waits for a server that is being restarted.
"""

from __future__ import annotations

import secrets
import threading
from collections import deque
from collections.abc import Collection, Sequence
from functools import partial
from typing import Any, cast

from laggard.kvstore.checkpoints.complete import (
    LostCheckpoint,
    Newest,
    ShardRecord,
    lost_with_job,
    newest_of_each,
    set_aside_after,
    under_way,
)
from laggard.kvstore.checkpoints.settings import Registry
from laggard.kvstore.client.connection import Endpoint
from laggard.kvstore.client.fence import FencedWriter, begin_launch, current_launch
from laggard.kvstore.client.retry import RetryPolicy, is_passing
from laggard.kvstore.control import Control, LaunchRecord, Request
from laggard.kvstore.errors import StaleLaunchError
from laggard.kvstore.membership import MembershipRecords, Published
from laggard.kvstore.state.mapping import State
from laggard.resilience.decision.ledger import Incident
from laggard.resilience.decision.roster import Exclusion

RETRY_FOR_S = 60.0
READ_WAIT_S = 1.0


class Records:
    """The records of one job."""

    def __init__(self, endpoint: Endpoint, lock_id: str = "") -> None:
        self._client = endpoint.connect()
        self._endpoint = endpoint  # the job's state server
        self._lock_id = lock_id  # of this controller in the server's lock, if it has one
        self._retry = RetryPolicy(endpoint, RETRY_FOR_S)
        self.launch = -1  # the launch number that this controller has raised last, under which it writes

    def next_launch(self) -> int:
        """Raise the launch number and return it: from here on nothing of before can write, nor another controller."""
        previous = self._retry.call(lambda: current_launch(self._client, self._endpoint))
        # A failover may have lost the last one.
        launch = max(self.launch, -1 if previous is None else previous) + 1
        self._retry.call(lambda: self._begin(launch))
        self.launch = launch
        return launch

    def _begin(self, launch: int) -> None:
        try:
            begin_launch(self._client, self._endpoint, launch, self._lock_id)
        except StaleLaunchError as stale:
            if stale.current != launch:  # otherwise our first attempt succeeded and its answer was lost
                raise

    def state_name(self) -> str:
        """Return the name of this State, always the same: of its checkpoints' folder, and of its run in trackers."""
        key = self._endpoint.key("checkpoint-folder")
        name = f"{self._endpoint.job}-{secrets.token_hex(4)}"
        writer = FencedWriter(self._client, self._endpoint, self.launch)
        self._retry.call(lambda: writer.execute([("SET", key, name, "NX")]))
        return cast("bytes", self._retry.call(lambda: self._client.get(key))).decode()

    def copies_under_way(self, launch: int) -> int:
        """Return how many shards of a launch's checkpoints still lack copies, of those that all ranks have saved."""
        state = self._state(launch)
        return under_way(state, partial(_shard_record, state), launch)

    def lost_checkpoints(self, launch: int, *, directory: bool) -> list[LostCheckpoint]:
        """Return what earlier jobs had only in the memory of nodes, before any shard server of this job runs."""
        state = self._state(launch)
        return list(lost_with_job(state, partial(_shard_record, state), directory=directory))

    def older_saves(self, launch: int, run: str, *, directory: bool) -> list[Newest]:
        """Return the newest checkpoint of each checkpointer that has an older one to go back to."""
        state = self._state(launch)
        servers = self._retry.call(Registry(self._client, self._endpoint, run).ids)
        return list(newest_of_each(state, partial(_shard_record, state), servers, directory=directory))

    def set_aside(self, saves: Sequence[Newest], launch: int) -> None:
        """Let no launch from this one on go on from these checkpoints, or from what was saved since."""
        state = self._state(launch)
        found = (set_aside_after(save.name, state, save.before) for save in saves)
        state.update({key: mark for marks in found for key, mark in marks.items()})

    def forget_shard_server(self, run: str, host: str) -> None:
        """Note that what a lost node held of checkpoints is gone."""
        self._retry.call(lambda: Registry(self._client, self._endpoint, run).remove(host))

    def write_launch(self, record: LaunchRecord) -> None:
        """Store the record of a launch."""
        self._retry.call(lambda: self._control(record.launch).write_launch(record))

    def publish(self, record: Published) -> None:
        """Publish who makes up a launch, under its fence."""
        MembershipRecords(self._client, self._endpoint, record.launch).publish(record)

    def write_reserve(self, launch: int, n_nodes: int) -> None:
        """Store how many nodes are in reserve, for the detectors of a launch."""
        self._retry.call(lambda: self._control(launch).tell_reserve(n_nodes))

    def write_exclusions(self, exclusions: Sequence[Exclusion], hosts: Collection[str]) -> None:
        """Store which of ``hosts`` are excluded, or have been; what is stored of other hosts stays as it is."""
        others = [exclusion for exclusion in self.read_exclusions() if exclusion.host not in hosts]
        self._retry.call(lambda: self._control(self.launch).keep("exclusions", [*others, *exclusions]))

    def read_exclusions(self) -> list[Exclusion]:
        """Return the stored exclusions, including those by earlier jobs and those that are over."""
        return self._retry.call(lambda: self._control(0).kept("exclusions", Exclusion))

    def write_ledger(self, incidents: Sequence[Incident], hosts: Collection[str]) -> None:
        """Store what began on ``hosts``; what is stored of other hosts stays as it is."""
        others = [incident for incident in self.read_ledger() if incident.host not in hosts]
        self._retry.call(lambda: self._control(self.launch).keep("ledger", [*others, *incidents]))

    def read_ledger(self) -> list[Incident]:
        """Return the stored ledger, including what earlier jobs have entered."""
        return self._retry.call(lambda: self._control(0).kept("ledger", Incident))

    def last_request_id(self) -> str:
        """Return the id of the newest request, after which a reader of new ones starts."""
        return self._retry.call(self._control(0).last_request_id)

    def signs(self, launch: int) -> tuple[int, str | None]:
        """Return a launch's signs of life: the number of commits to State so far, and the step that it reported."""
        commits = self._state(launch).commits()
        return commits, self._retry.call(self._control(launch).read_progress)

    def ranks(self, launch: int) -> dict[str, dict[str, Any]]:
        """Return how a launch's ranks look from outside, by host, as the nodes have stored it."""
        return self._retry.call(self._control(launch).read_ranks)

    def _control(self, launch: int) -> Control:
        return Control(self._client, self._endpoint, launch)

    def _state(self, launch: int) -> State:
        return State(self._client, self._endpoint, launch, retry_for_s=RETRY_FOR_S)


def _shard_record(state: State, key: str) -> ShardRecord | None:
    value = state.get(key)
    return None if value is None else ShardRecord.of_value(value)


class RequestReader:
    """Reads new requests from the stream, in a separate thread.

    If the server does not answer, the reader keeps trying: either the server is being restarted, or the controller ends
    the job. Whatever else goes wrong is a failure, since a controller that hears no request must not go on.
    """

    def __init__(self, endpoint: Endpoint, changed: threading.Condition, after: str) -> None:
        self.waiting: deque[Request] = deque()  # requests that the controller has not handled yet, oldest first
        self.failure: Exception | None = None  # why no more requests are read; `None` while they are
        self._control = Control(endpoint.connect(), endpoint, launch=0)
        self.changed = changed  # notified when a request has arrived
        self._last_id = after
        self._stopped = threading.Event()
        threading.Thread(target=self._read, name="requests", daemon=True).start()

    def stop(self) -> None:
        """Stop reading; the thread ends within a second."""
        self._stopped.set()

    def _read(self) -> None:
        while not self._stopped.is_set():
            try:
                for request_id, request in self._control.requests(self._last_id, READ_WAIT_S):
                    self._last_id = request_id
                    with self.changed:
                        self.waiting.append(request)
                        self.changed.notify_all()
            except Exception as error:  # noqa: BLE001 - the controller ends the job with it
                if is_passing(error):
                    self._stopped.wait(READ_WAIT_S / 10)
                    continue
                with self.changed:
                    self.failure = error
                    self.changed.notify_all()
                return
