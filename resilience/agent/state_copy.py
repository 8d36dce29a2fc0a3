"""A node's part in the copy of State: it votes, and has the copy if it is told to.

Every node has one as a sidecar of its agent (``python -m laggard.resilience.agent.state_copy FOLDER STATE_DIR HOST``),
and it ends with its agent.  The copy's files stay in the state directory.
"""

from __future__ import annotations

import logging
import os
import shutil
import sys
import threading
from collections.abc import Collection
from pathlib import Path

from laggard.kvstore.client.connection import Endpoint
from laggard.kvstore.client.environment import ENDPOINT_FILE
from laggard.kvstore.client.retry import is_passing
from laggard.kvstore.copy_plans import CopyAnswer, CopyPlan, CopyPlans, PlannedReplica
from laggard.kvstore.errors import KVStoreError
from laggard.kvstore.replica import Replica
from laggard.logs import configure_logging
from laggard.resilience.agent.ballot_box import BallotBox
from laggard.resilience.agent.processes import AGENT_MARK
from laggard.resilience.decision.ballots import CopyRecord, term_of

__all__ = ["NodeCopy", "main"]

_log = logging.getLogger("laggard.resilience.agent")

_WAIT_S = 1.0
_SYNCHRONIZING_WAIT_S = 0.1
_AGAIN_S = 0.2
_SOCKET = "copy.sock"


class NodeCopy:
    """What one node does for the copy.

    Parameters
    ----------
    folder
        The node's private folder.
    box
        Its ballot.
    host
        Its name.
    endpoint
        The job's state server.
    """

    def __init__(self, folder: Path, box: BallotBox, host: str, endpoint: Endpoint) -> None:
        self._socket = folder / _SOCKET
        self._box = box
        self._host = host
        self._endpoint = endpoint
        self._client = endpoint.connect()
        self._plans = CopyPlans(self._client, endpoint)
        self._seen = "0"
        self._asked = ""  # the copy that we were last asked for: none is begun twice
        self._replica: Replica | None = None
        self._complaint = ""
        self._told: CopyAnswer | None = None

    def keep_up(self, stopped: threading.Event) -> None:
        """Do what the plans say, until told to stop."""
        while not stopped.is_set():
            try:
                self._step()
            except Exception as error:
                if not is_passing(error):
                    raise
                _log.debug("the state server does not answer: %s", error)
                self._told = None  # it may have lost what it was told last
                stopped.wait(_AGAIN_S)

    def stop(self) -> None:
        """End the replica."""
        self._end_replica()
        self._client.close()

    def _step(self) -> None:
        synchronizing = self._replica is not None and self._told is not None and not self._told.complete
        newer = self._plans.newer(self._seen, _SYNCHRONIZING_WAIT_S if synchronizing else _WAIT_S)
        if newer is not None:
            self._seen, plan = newer
            self._follow(plan)
        answer = self._answer()
        if answer != self._told:
            self._plans.answer(self._host, answer)
            self._told = answer

    def _follow(self, plan: CopyPlan) -> None:
        if plan.record is not None:
            record = CopyRecord.of_json(plan.record)
            self._box.cast(lambda before: before.accept(record))
        wanted = plan.replica if plan.replica is not None and plan.replica.host == self._host else None
        if wanted is None:
            self._end_replica()
        elif wanted.copy != self._asked:
            self._end_replica()
            self._begin_replica(wanted)
        if plan.counts:
            self._remove_copies_before(plan.counts, {plan.counts, "" if wanted is None else wanted.copy})

    def _begin_replica(self, wanted: PlannedReplica) -> None:
        self._asked, self._complaint = wanted.copy, ""
        folder = self._box.folder / wanted.copy
        if folder.exists():  # the sidecar has been started again, and the copy that it had may be the one that counts
            self._complaint = "its server has ended"
            return
        try:
            self._replica = Replica(folder, self._socket, self._endpoint, wanted.user)
        except (OSError, KVStoreError) as error:
            self._complaint = str(error)

    def _end_replica(self) -> None:
        if self._replica is not None:
            self._replica.stop()
            self._replica = None

    def _remove_copies_before(self, counts: str, kept: Collection[str]) -> None:
        """Remove what the copy that counts has made useless: not what a later controller has, if ours is cut off."""
        for folder in self._box.folder.iterdir():
            if folder.is_dir() and folder.name not in kept and term_of(folder.name) <= term_of(counts):
                shutil.rmtree(folder, ignore_errors=True)

    def _answer(self) -> CopyAnswer:
        ballot = self._box.read()
        accepted = (0, 0) if ballot.accepted is None else ballot.accepted.order
        if self._replica is None:
            return CopyAnswer(ballot.promised, accepted, complaint=self._complaint)
        complaint = self._replica.complaint()
        complete = not complaint and self._replica.is_complete()
        return CopyAnswer(ballot.promised, accepted, self._asked, complete, complaint)


def main(folder: Path, state_dir: Path, host: str) -> None:
    """Do the node's part until the agent, at the other end of standard input, has ended."""
    configure_logging()
    os.umask(0o077)
    box = BallotBox(state_dir, host)
    if mark := os.environ.get(AGENT_MARK):  # the primary's own agent has none: it ends with the controller
        box.add_mark(mark)
    stopped = threading.Event()

    def wait_for_end() -> None:
        while sys.stdin.buffer.read(1 << 16):
            pass
        stopped.set()

    threading.Thread(target=wait_for_end, name="stdin", daemon=True).start()
    node = NodeCopy(folder, box, host, Endpoint.load(Path(os.environ[ENDPOINT_FILE])))
    try:
        node.keep_up(stopped)
    finally:
        node.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
