"""What a node keeps for the copy of State: its ballot, and the copy itself.

As a command it does what whoever takes over asks of this node:
``python -m laggard.resilience.agent.ballot_box look|promise|send STATE_DIR HOST [TERM|COPY]``.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import sys
import tarfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from laggard.kvstore.client.connection import write_private
from laggard.kvstore.replica import LOCK
from laggard.kvstore.server.directory import DATA, is_in_use
from laggard.resilience.agent.processes import AGENT_MARK, end_marked
from laggard.resilience.decision.ballots import Ballot

__all__ = ["COPIES", "SEND_MARK", "BallotBox", "main"]

COPIES = "copies"
"""Folder in the state directory that holds what this module keeps, in a folder for each host."""
SEND_MARK = b"laggard: the copy of State follows\n"
_BALLOT = "ballot.json"
_MARKS = "agents"
_BOX_LOCK = "lock"
_END_DEADLINE_S = 5.0
_POLL_S = 0.02


class BallotBox:
    """The ballot of one node for the State in one directory.

    Parameters
    ----------
    state_dir
        The state directory that the user named: on this node's own disk, or a shared one.
    host
        The node.

    Attributes
    ----------
    folder : Path
        Where its files are; only their owner can read them.
    """

    def __init__(self, state_dir: Path, host: str) -> None:
        self.folder = state_dir / COPIES / host

    def read(self) -> Ballot:
        """Return the ballot."""
        try:
            return Ballot.of_json((self.folder / _BALLOT).read_bytes())
        except FileNotFoundError:
            return Ballot()

    def cast(self, vote: Callable[[Ballot], Ballot | None]) -> Ballot:
        """Change the ballot unless the vote is None, and return it; it is on disk by then, and no other vote between.

        Parameters
        ----------
        vote
            Returns the changed ballot, given the present one.
        """
        with self._locked():
            before = self.read()
            after = vote(before)
            if after is None or after == before:
                return before
            write_private(self.folder / _BALLOT, after.to_json())
            return after

    def add_mark(self, mark: str) -> None:
        """Remember the mark of an agent of this node, by which a promise ends it."""
        with self._locked():
            write_private(self.folder / _MARKS, "\n".join([*self._marks(), mark]))

    def promise(self, term: int) -> Ballot:
        """Promise a term if no later one was promised; end everything that acts here for an earlier one."""
        ballot = self.cast(lambda before: before.promise(term))
        if ballot.promised == term:
            with self._locked():
                left = [mark for mark in self._marks() if not end_marked(AGENT_MARK, mark, _END_DEADLINE_S)]
                write_private(self.folder / _MARKS, "\n".join(left))
        return ballot

    def _marks(self) -> list[str]:
        # several: a controller that was cut off may start an agent here after another has taken over
        with contextlib.suppress(FileNotFoundError):
            return (self.folder / _MARKS).read_text().split()
        return []

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with (self.folder / _BOX_LOCK).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def _await_end_of_replica(copy: Path) -> bool:
    """Wait until no server uses the copy any more; return whether that was so in time."""
    until_s = time.monotonic() + _END_DEADLINE_S
    fd = os.open(copy / LOCK, os.O_RDWR)
    try:
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > until_s:
                    return False
                time.sleep(_POLL_S)
            else:
                return True
    finally:
        os.close(fd)


def _send(copy: Path) -> int:
    try:
        is_free = _await_end_of_replica(copy)
    except OSError as error:
        sys.stderr.write(f"{copy}: {error.strerror}\n")
        return 1
    if not is_free:
        sys.stderr.write(f"{copy}: its server does not end\n")
        return 1
    sys.stdout.buffer.write(SEND_MARK)
    with tarfile.open(fileobj=sys.stdout.buffer, mode="w|") as archive:
        archive.add(copy / DATA, DATA)
    return 0


def main(arguments: Sequence[str]) -> int:
    """Do one thing for whoever takes over, and print the answer."""
    what, state_dir, host, *more = arguments
    os.umask(0o077)
    box = BallotBox(Path(state_dir), host)
    if what == "send":
        return _send(box.folder / more[0])
    ballot = box.promise(int(more[0])) if what == "promise" else box.read()
    sys.stdout.write(json.dumps({"ballot": ballot.to_json(), "runs": is_in_use(Path(state_dir))}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
