"""What the user reads while a job runs: a line for each event, and a table at the end."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, Protocol

from rich.console import Console
from rich.table import Table
from rich.text import Text

from laggard.detectors.verdict import Verdict
from laggard.resilience.decision.events import ProgramHung
from laggard.resilience.decision.failure import Failure
from laggard.resilience.text import abbreviated, printable, wrapped

__all__ = ["Account", "Gap", "LaunchEndCause", "LaunchSummary", "SeesProgress", "TakesNote"]

LaunchEndCause = Literal["end", "failure", "node lost", "hang", "exclusion", "growth", "stop"]

# Of a line; a longer one goes on in the next.
MAX_COLUMNS = 120
# Of a reason in the closing table: all of it was told before, and is in the report.
MAX_WHY = 160


class TakesNote(Protocol):
    """Keeps events for later (:mod:`laggard.resilience.record.journal`)."""

    def __call__(self, event: str, /, **fields: object) -> None:
        """Note an event."""


class SeesProgress(Protocol):
    """Keeps how far a launch has come (:mod:`laggard.resilience.record.progress_log`)."""

    def __call__(self, launch: int, commits: int, step: str | None) -> None:
        """Note a launch's signs of life."""


def _forget(event: str, /, **fields: object) -> None:
    del event, fields


def _look_away(launch: int, commits: int, step: str | None) -> None:
    del launch, commits, step


@dataclass(frozen=True, slots=True)
class Gap:
    """The time from the decision to relaunch to the start of the next program, in seconds.

    Attributes
    ----------
    stop_s
        Until the old program had ended.
    fence_s
        Then, until it could write no more, what it wrote was on disk, and nothing of it ran on the primary.
    nodes_s
        Then, until the bad node had left the cluster, the new one had joined, and nothing of the old launch was left.
    """

    stop_s: float
    fence_s: float
    nodes_s: float

    @property
    def total_s(self) -> float:
        """The whole gap, in seconds."""
        return self.stop_s + self.fence_s + self.nodes_s

    def __str__(self) -> str:
        return (
            f"the gap was {self.total_s:.1f} s: {self.stop_s:.2f} s to end the program, "
            f"{self.fence_s:.2f} s to fence it, {self.nodes_s:.2f} s to change the nodes"
        )


@dataclass(slots=True)
class LaunchSummary:
    """One row of the closing table.

    Attributes
    ----------
    launch
        Number of the launch.
    nodes
        Its nodes, the primary first if it is one of them.
    began_s
        When its program was started, in seconds since the job began.
    gap
        The gap before it; ``None`` for the first launch.
    ended_s
        When it ended, in seconds since the job began.
    why
        Why it ended.
    """

    launch: int
    nodes: tuple[str, ...]
    began_s: float
    gap: Gap | None = None
    ended_s: float = 0.0
    why: str = ""


class Account:
    """Tells the user what happens, on standard error; standard output is the program's.

    Parameters
    ----------
    console
        Where to write.
    clock
        Monotonic seconds.

    Attributes
    ----------
    take_note
        Records an entry; does nothing until it is replaced.
    see_progress
        Records how far a launch has come; does nothing until it is replaced.
    launches
        The launches so far.
    """

    def __init__(
        self,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.take_note: TakesNote = _forget
        self.see_progress: SeesProgress = _look_away
        self._console = console or Console(stderr=True, highlight=False, soft_wrap=True)
        self._clock = clock
        self._began_s = clock()
        self.launches: list[LaunchSummary] = []

    def elapsed_s(self) -> float:
        """Return the seconds since the job began."""
        return self._clock() - self._began_s

    def tell(self, what: str, text: str, style: str = "") -> None:
        """Write a line: the time since the job began, a word that says what it is about, and a text."""
        if self._console.is_terminal:
            self._console.file.write("\r\x1b[2K")  # the program may have a progress bar on this line
        text = printable(text)  # some of it are a program's own words
        minutes, seconds = divmod(self.elapsed_s(), 60)
        time_since = f"{minutes:02.0f}:{seconds:04.1f}"
        width = min(MAX_COLUMNS, self._console.width) if self._console.is_terminal else MAX_COLUMNS
        lines = wrapped(text, width, len(time_since) + 11)
        # In one piece: other threads may write a line of a log in between.
        self._console.print(Text.assemble((time_since, "dim"), " ", (f"{what:<9}", style or "bold"), " ", lines))
        self.take_note("told", what=what, text=text)

    def verdict(self, verdict: Verdict) -> None:
        """Report a verdict."""
        cause = "" if verdict.cause == "unknown" else f"; likely cause: {verdict.cause}"
        self.tell("verdict", f"{verdict.evidence} ({verdict.severity}){cause}", "bold yellow")
        slowdown = verdict.slowdown if math.isfinite(verdict.slowdown) else None  # JSON has neither NaN nor infinity
        self.take_note("verdict", **asdict(verdict) | {"slowdown": slowdown})

    def note_failure(self, failure: Failure, evidence: Mapping[str, str]) -> None:
        """Note why a launch failed, and what was found on its nodes.

        The user reads it in the line that says what is done about it.
        """
        self.take_note("failure", sentence=failure.sentence, **asdict(failure), evidence=dict(evidence))

    def note_hang(self, hang: ProgramHung, launch: int, stacks: Path | None) -> None:
        """Note that a launch hangs, and in which file its stacks are.

        The user reads it in the line that says what is done about it.
        """
        file = None if stacks is None else stacks.name
        self.take_note("hang", sentence=hang.sentence, suspect=hang.suspect, launch=launch, stacks=file)

    def launch_began(
        self, launch: int, nodes: Sequence[str], reserve: Sequence[str], gap: Gap | None, primary: str
    ) -> None:
        """Report that the program of a launch was started."""
        self.launches.append(LaunchSummary(launch, tuple(nodes), self.elapsed_s(), gap))
        told_gap = None if gap is None else asdict(gap)
        entry = {"nodes": list(nodes), "reserve": list(reserve), "gap": told_gap, "primary": primary}
        self.take_note("launch", launch=launch, **entry)
        waiting = f"; reserve: {abbreviated(reserve)}" if reserve else ""
        only = "" if primary in nodes else ", without its devices"
        self.tell("launch", f"{launch} on {abbreviated(nodes)} (primary: {primary}{only}){waiting}", "bold green")
        if gap is not None:
            self.tell("gap", str(gap))

    def launch_ended(self, why: str, cause: LaunchEndCause, wait_s: float = 0.0) -> None:
        """Note the end of the latest launch; the next one begins after a back-off of at least ``wait_s`` seconds."""
        if self.launches and not self.launches[-1].why:
            self.launches[-1].ended_s = self.elapsed_s()
            self.launches[-1].why = why
            launch = self.launches[-1].launch
            self.take_note("launch-end", launch=launch, why=why, cause=cause, wait_s=wait_s)

    def close(self, excluded: Sequence[str], exit_code: int, set_aside: str = "") -> None:
        """Write the table of launches and a summary; ``set_aside``: the primary, if its devices are in quarantine."""
        self.take_note("end", exit_code=exit_code, excluded=list(excluded))
        table = Table(title="launches", title_justify="left", title_style="bold")
        for column in ("launch", "nodes", "began", "ran", "gap before", "ended because"):
            table.add_column(column, justify="right" if column in {"began", "ran", "gap before"} else "left")
        for row in self.launches:
            table.add_row(
                str(row.launch),
                Text(abbreviated(row.nodes)),
                f"{row.began_s:.1f} s",
                f"{row.ended_s - row.began_s:.1f} s",
                "" if row.gap is None else f"{row.gap.total_s:.1f} s",
                Text(row.why if len(row.why) <= MAX_WHY else f"{row.why[: MAX_WHY - 2]} …"),  # it may have [brackets]
            )
        self._console.print(table, width=min(MAX_COLUMNS, self._console.width))
        names = f" ({abbreviated(excluded)})" if excluded else ""
        names += f", the primary ({set_aside}) without its devices" if set_aside else ""
        summary = (
            f"{_count(self.launches, 'launch', 'launches')}, {_count(excluded, 'node', 'nodes')} excluded{names}, "
            f"{self.elapsed_s():.1f} s in all, exit code {exit_code}"
        )
        self._console.print(wrapped(summary, MAX_COLUMNS, 4), markup=False)


def _count(things: Sequence[object], one: str, several: str) -> str:
    return f"{len(things)} {one if len(things) == 1 else several}"
