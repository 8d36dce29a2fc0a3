"""Begins a term of the copy of State, from whichever node has the newest State.

Every job with ``--state-copy`` begins like this: it asks all nodes what they have accepted, has them promise a higher
term, which ends what acts there for an earlier one, and gets State from the node that has the copy unless the copy's
primary is this node.  Nothing is changed unless most of the nodes answer.
"""

from __future__ import annotations

import json
import secrets
import select
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

from laggard.kvstore.server.directory import DATA, locked
from laggard.kvstore.server.process import SNAPSHOT
from laggard.resilience.agent.ballot_box import COPIES, SEND_MARK
from laggard.resilience.decision.ballots import Ballot, CopyRecord, is_majority, members_of, newest
from laggard.resilience.errors import StateCopyError

__all__ = ["Begun", "begin_term", "check_not_copied"]

BOX_COMMAND = (sys.executable, "-P", "-m", "laggard.resilience.agent.ballot_box")
ANSWER_DEADLINE_S = 30.0
STALL_S = 60.0
LOCK_DEADLINE_S = 10.0
FEWEST = 3
_CHUNK_BYTES = 1 << 20
_LONGEST_NOISE_BYTES = 1 << 20

CommandOn = Callable[[str, Sequence[str]], list[str]]
"""Returns the command that runs another one on a node; given the node's host name and the other command."""


@dataclass(frozen=True, slots=True)
class Begun:
    """A term that has begun.

    Attributes
    ----------
    record
        Who holds State in it, and who votes.
    taken_over
        What has become of the State of the last primary, for the user; empty: State was here.
    """

    record: CopyRecord
    taken_over: str = ""


@dataclass(frozen=True, slots=True)
class _Answer:
    ballot: Ballot
    runs: bool  # whether a state server uses the state directory there


def check_not_copied(state_dir: Path) -> None:
    """Check that the State in a directory has no copies, for a job that keeps none.

    Raises
    ------
    StateCopyError
        If it has: they would be taken for State later.
    """
    copies = state_dir / COPIES
    if copies.exists():
        raise StateCopyError(
            f"{state_dir} was copied to other nodes: add --state-copy, or remove {copies} on every node"
        )


def begin_term(state_dir: Path, job: str, hosts: Sequence[str], missing: Mapping[str, str], run_on: CommandOn) -> Begun:
    """Begin a term in which this node, the first of the hosts, holds State; State is in the directory then.

    Parameters
    ----------
    state_dir
        The state directory.
    job
        Id of the job.
    hosts
        All nodes, this one first.
    missing
        Those that do not answer.
    run_on
        How a command is run on a node.

    Raises
    ------
    StateCopyError
        If too few nodes answer, the job still runs, or there is no copy of the newest State.
    """
    here, state_dir = hosts[0], state_dir.absolute()
    boxes = _Boxes(state_dir, [host for host in hosts if host not in missing], run_on)
    looked = boxes.ask("look")
    found = newest(answer.ballot for answer in looked.values())
    members = members_of(found, hosts)
    _check(looked, found, members, job)
    term = 1 + max(answer.ballot.promised for answer in looked.values())
    promised = {host: each for host, each in boxes.ask("promise", str(term)).items() if each.ballot.promised == term}
    if not is_majority(promised, members):
        raise StateCopyError("another laggard is starting this job from it; let that one go on, or try again")
    found = newest(answer.ballot for answer in promised.values())  # it may have changed in between
    record = CopyRecord(term, 0, job, here, members)
    if found is None or found.primary == here:
        return Begun(record)
    if not found.holder:
        raise StateCopyError(
            f"there was none when {found.primary} was last heard of: State is on {found.primary} only; "
            f"start the job there, or remove {state_dir} on every node to begin anew"
        )
    if found.holder not in promised:
        raise StateCopyError(f"it is on {found.holder}, which does not answer; try again when it does")
    boxes.fetch(found.holder, found.copy)
    return Begun(record, f"{found.primary} has it no more: taken over from the copy on {found.holder}")


def _check(looked: Mapping[str, _Answer], found: CopyRecord | None, members: Sequence[str], job: str) -> None:
    if found is None and len(members) < FEWEST:
        raise StateCopyError(
            f"--state-copy needs {FEWEST} nodes: of two, neither can tell whether the other is lost or cut off"
        )
    if not is_majority(looked, members):
        raise StateCopyError(
            f"only {len(set(looked) & set(members))} of the {len(members)} nodes that know where it is answer "
            f"({', '.join(members)}): most of them must"
        )
    if found is not None and found.job != job:
        raise StateCopyError(f"it belongs to job {found.job!r}, not {job!r}; name another --state-dir, or that job")
    if found is not None and found.primary in looked and looked[found.primary].runs:
        raise StateCopyError(f"the job runs, with {found.primary} as its primary; end it there first")


class _Boxes:
    """The ballot boxes of the nodes that answer."""

    def __init__(self, state_dir: Path, hosts: Sequence[str], run_on: CommandOn) -> None:
        self._state_dir = state_dir
        self._hosts = hosts
        self._run_on = run_on

    def ask(self, what: str, *more: str) -> dict[str, _Answer]:
        """Ask all of them, and return the answers of those that give one in time."""
        with ThreadPoolExecutor(len(self._hosts), "ballots") as threads:
            asked = {host: threads.submit(self._ask_one, host, what, more) for host in self._hosts}
        answers = {host: future.result() for host, future in asked.items()}
        return {host: answer for host, answer in answers.items() if answer is not None}

    def fetch(self, host: str, copy: str) -> None:
        """Get a copy from a node, and put it into the place of what is in the state directory."""
        with locked(self._state_dir, time.monotonic() + LOCK_DEADLINE_S):
            draft = Path(tempfile.mkdtemp(prefix=".fetched-", dir=self._state_dir))
            try:
                self._receive(host, copy, draft)
                self._move_away(DATA, SNAPSHOT)
                (draft / DATA).rename(self._state_dir / DATA)
            finally:
                shutil.rmtree(draft, ignore_errors=True)

    def _receive(self, host: str, copy: str, into: Path) -> None:
        command = self._command(host, "send", copy)
        with tempfile.TemporaryFile() as stderr:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=stderr,
                start_new_session=True,
                bufsize=0,
                cwd="/",
            )
            try:
                with cast("IO[bytes]", process.stdout) as pipe:
                    _extract(_Stream(pipe), into)
                subprocess.CompletedProcess(command, process.wait(ANSWER_DEADLINE_S)).check_returncode()
            except (tarfile.TarError, OSError, subprocess.SubprocessError) as error:
                stderr.seek(0)
                said = stderr.read().decode(errors="replace").strip().splitlines()
                raise StateCopyError(f"{host} did not send it ({said[-1] if said else error}); try again") from error
            finally:
                process.kill()
                process.wait(ANSWER_DEADLINE_S)

    def _move_away(self, *names: str) -> None:
        there = [self._state_dir / name for name in names if (self._state_dir / name).exists()]
        if there:
            replaced = self._state_dir / f"replaced-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
            replaced.mkdir(mode=0o700)
            for path in there:
                path.rename(replaced / path.name)

    def _command(self, host: str, what: str, *more: str) -> list[str]:
        return self._run_on(host, [*BOX_COMMAND, what, str(self._state_dir), host, *more])

    def _ask_one(self, host: str, what: str, more: Sequence[str]) -> _Answer | None:
        try:
            done = subprocess.run(
                self._command(host, what, *more),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=ANSWER_DEADLINE_S,
                start_new_session=True,
                cwd="/",
            )
        except subprocess.TimeoutExpired:
            return None
        if done.returncode != 0:
            return None
        found = json.loads(done.stdout.splitlines()[-1])
        return _Answer(Ballot.of_json(found["ballot"]), bool(found["runs"]))


def _extract(stream: _Stream, into: Path) -> None:
    with tarfile.open(fileobj=cast("IO[bytes]", stream), mode="r|") as archive:
        archive.extractall(into, filter="data")
    while stream.read(_CHUNK_BYTES):  # up to its end, so that its sender can end well
        pass


class _Stream:
    """What a node sends, after what its shell may print first; it may not stall."""

    def __init__(self, pipe: IO[bytes]) -> None:
        self._pipe = pipe
        self._begun = False
        self._rest = b""

    def read(self, n_bytes: int) -> bytes:
        """Return up to this many bytes; none at the end."""
        if not self._begun:
            self._skip_noise()
        while len(self._rest) < n_bytes and (more := self._next()):
            self._rest += more
        data, self._rest = self._rest[:n_bytes], self._rest[n_bytes:]
        return data

    def _skip_noise(self) -> None:
        while (at := self._rest.find(SEND_MARK)) < 0:
            more = self._next()
            if not more or len(self._rest) > _LONGEST_NOISE_BYTES:
                raise OSError("it sent nothing")
            self._rest += more
        self._rest, self._begun = self._rest[at + len(SEND_MARK) :], True

    def _next(self) -> bytes:
        if not select.select([self._pipe], [], [], STALL_S)[0]:
            raise OSError(f"nothing came for {STALL_S:g} s")
        return self._pipe.read(_CHUNK_BYTES)
