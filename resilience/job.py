"""``Job``: what a program can learn about the job that it is part of, and report to it."""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace

from laggard.collectors.device import gpu_names, visible_names
from laggard.kvstore.client.connection import current_session
from laggard.kvstore.control import Control, NodeRecord, PhaseRecord, Progress, primary_of
from laggard.kvstore.errors import FencedError
from laggard.kvstore.membership import Membership
from laggard.kvstore.state.local_state import is_outside_jobs, local_state
from laggard.telemetry import wording
from laggard.telemetry.events import Event, EventLog
from laggard.telemetry.query.times import ALL_TIME_US

PROGRESS_INTERVAL_S = 0.25
_ANNOTATED = {"launch", "launch-end", "verdict", "failure"}


@dataclass(frozen=True, slots=True, repr=False)
class Job:
    """The launch that this process belongs to, and the nodes that it runs on.

    Attributes
    ----------
    launch
        Number of this launch, from 0.
    nodes
        The active nodes in the order of their ranks; each has ``hostname``, ``address`` and ``devices``.
    reserve
        The nodes kept in reserve.
    excluded
        Host names of the excluded nodes.
    head_only
        The primary, if its devices are not in use; ``None``: it is one of the nodes.
    primary_host
        Host name of the primary; empty: the first of the nodes.
    """

    launch: int
    nodes: tuple[NodeRecord, ...]
    reserve: tuple[NodeRecord, ...]
    excluded: tuple[str, ...] = ()
    head_only: NodeRecord | None = None
    primary_host: str = ""

    def __repr__(self) -> str:
        parts = {
            "launch": [str(self.launch)],
            "on": self._names(self.nodes),
            "reserve": self._names(self.reserve),
            "excluded": self.excluded,
            "head-only": [] if self.head_only is None else [self.head_only.hostname],
        }
        said = [f"{name} {', '.join(names)}" for name, names in parts.items() if names]
        return f"<Job: {'; '.join(said)}>"

    @classmethod
    def current(cls, *, local: bool = True) -> Job:
        """Return the job of this process, which may be the program or any of its workers on any node.

        For a program that was started without laggard it is a job of one node, whose launches are the runs of the
        program that share its State (`State.current`); steps and phases are then reported to nobody.

        Parameters
        ----------
        local
            Whether the program can do without laggard; if not, it is told to start with it.

        Raises
        ------
        NotInJobError
            If the program was started without laggard, and on several machines or with ``local=False``.
        """
        if local and is_outside_jobs():
            devices = tuple(visible_names(os.environ) or gpu_names())
            return cls(local_state().launch, (NodeRecord(socket.gethostname(), "127.0.0.1", devices),), ())
        session = current_session()
        record = Control(session.client, session.endpoint, session.environment.launch).read_launch()
        return cls(record.launch, record.nodes, record.reserve, record.excluded, record.head_only, record.primary_host)

    def progress(self, step: float) -> None:
        """Report that the program has reached a step, counted over the whole job and not anew in each launch.

        It is a sign of life for ``--hang-timeout``; and a launch that goes beyond the steps of all before it has made
        progress.

        Cheap to call often: at most one step is sent every quarter of a second, the others are dropped.

        Raises
        ------
        FencedError
            If a later launch has begun: this process should end.
        """
        if not is_outside_jobs():
            _reporter().report(step)

    def checkpointed(self, step: float) -> None:
        """Report that all work up to a step can be restored, counted as for `progress`: a checkpoint of it is written.

        What a restart costs then includes the work since that step. Without it, commits to `State` are taken for
        checkpoints, and `Checkpointer`, `laggard.torch.resume` and the callbacks need no call.

        As cheap as `progress`, and limited to as many calls a second.

        Raises
        ------
        FencedError
            If a later launch has begun: this process should end.
        """
        if not is_outside_jobs():
            _reporter().report(step, "checkpointed")

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Declare that this process does something that slows its node down, and that will end by itself.

        Use it around a checkpoint or an evaluation: ``with job.phase("checkpoint"): ...``. Until the end of the block,
        but for an hour at most, what is read on this process's node is not held against anybody, and nothing is learned
        from it. Phases may be nested, and several processes and threads of a node may be in one.

        Parameters
        ----------
        name
            What it is called.

        Raises
        ------
        FencedError
            If a later launch has begun: this process should end.
        """
        if is_outside_jobs():
            yield
            return
        phases = _phases()
        phases.begin(name)
        try:
            yield
        finally:
            with contextlib.suppress(FencedError):  # then nobody listens any more
                phases.end()

    @staticmethod
    def events() -> list[Event]:
        """Return the launches, verdicts and failures of the job so far, by all launches, in order of their ``time_us``.

        Each has a ``kind`` (``launch``, ``launch-end``, ``verdict`` or ``failure``) and a ``text``: an annotation for
        the program's run in a tracker of experiments. Cheap to call often: only new ones are read.
        """
        if is_outside_jobs():
            return []
        known = _event_log().between(0, ALL_TIME_US)
        return [replace(each, text=wording.event(each)) for each in known if each.kind in _ANNOTATED]

    @property
    def membership(self) -> Membership | None:
        """How this rank stays while lost ones are replaced; None without ranks of ours (``--per-device``)."""
        return None if is_outside_jobs() else _membership()

    @property
    def restarted(self) -> bool:
        """Whether this is not the first launch."""
        return self.launch > 0

    @property
    def primary(self) -> NodeRecord:
        """The node that runs the state server; it is never excluded, but may go on without its devices."""
        return self.head_only or primary_of(self.nodes, self.primary_host)

    @staticmethod
    def _names(nodes: tuple[NodeRecord, ...]) -> list[str]:
        return [node.hostname for node in nodes]


class _Reporter:
    """Sends the steps of this process, not too often."""

    def __init__(self) -> None:
        session = current_session()
        self._control = Control(session.client, session.endpoint, session.environment.launch)
        self._due_s: defaultdict[Progress, float] = defaultdict(float)

    def report(self, step: float, kind: Progress = "step") -> None:
        if (now_s := time.monotonic()) >= self._due_s[kind]:
            self._due_s[kind] = now_s + PROGRESS_INTERVAL_S
            self._control.tell_progress(step, kind)


class _Phases:
    """Tells the detectors when this process is in a phase."""

    def __init__(self) -> None:
        session = current_session()
        self._control = Control(session.client, session.endpoint, session.environment.launch)
        self._host = session.environment.node
        self._lock = threading.Lock()
        self._count = self._running = 0
        self._name = ""

    def begin(self, name: str) -> None:
        with self._lock:
            self._tell(name, self._count + 1, self._running + 1)

    def end(self) -> None:
        with self._lock:
            self._tell(self._name, self._count, self._running - 1)

    def _tell(self, name: str, count: int, running: int) -> None:
        self._name, self._count, self._running = name, count, running
        self._control.tell_phase(f"{self._host}/{os.getpid()}", PhaseRecord(self._host, name, count, running > 0))


@functools.cache
def _membership() -> Membership | None:
    return Membership.of_process()


@functools.cache
def _phases() -> _Phases:
    return _Phases()


@functools.cache
def _event_log() -> EventLog:
    session = current_session()
    return EventLog(session.client, session.endpoint)


@functools.cache
def _reporter() -> _Reporter:
    return _Reporter()
