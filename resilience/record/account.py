"""What the user reads while a job runs: a line for each event, and a table at the end."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace

from rich.console import Console
from rich.table import Table
from rich.text import Text

from laggard.detectors.verdict import Verdict
from laggard.resilience.decision import wording as decision_wording
from laggard.resilience.decision.events import Reason
from laggard.resilience.record import wording
from laggard.resilience.record.entries import JobEnded, LaunchEndCause, LaunchEnded, Record, Told
from laggard.resilience.record.error_log import TakeErrors
from laggard.resilience.record.timeline import Launch
from laggard.resilience.text import abbreviated, duration, printable, wrapped
from laggard.telemetry.course import Gap, LaunchBegan

# Of a line; a longer one goes on in the next.
MAX_COLUMNS = 120
# Of a reason in the closing table: all of it was told before, and is in the report.
MAX_WHY = 160


def fill_with_launches(table: Table, launches: Sequence[Launch], began_s: float, now_s: float) -> Table:
    """Give a table a row for each launch of a job that began then."""
    for column in ("launch", "nodes", "began", "ran", "gap before", "ended because"):
        table.add_column(column, justify="right" if column in {"began", "ran", "gap before"} else "left")
    for launch in launches:
        why = decision_wording.reason(launch.why) if launch.why else "still running"
        table.add_row(
            str(launch.number),
            Text(abbreviated(launch.nodes)),
            duration(launch.began_s - began_s),
            duration((now_s if math.isnan(launch.ended_s) else launch.ended_s) - launch.began_s),
            duration(sum(launch.gap_s.values())) if launch.gap_s else "",
            Text(why if len(why) <= MAX_WHY else f"{why[: MAX_WHY - 2]} …"),  # it may have [brackets]
        )
    return table


class Account:
    """Tells the user what happens, on standard error; standard output is the program's."""

    def __init__(self, console: Console | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.take_note: Callable[[Record], object] = lambda _: None  # records an entry, once it is replaced
        # Records how far a launch has come, once it is replaced: its number, commits and step
        self.see_progress: Callable[[int, int, str | None], object] = lambda *_: None
        self.take_errors: TakeErrors = lambda *_: None  # keeps what the program writes to standard error
        self._console = console or Console(stderr=True, highlight=False, soft_wrap=True)  # where to write
        self._clock = clock  # monotonic seconds
        self._began_s = clock()
        self.launches: list[Launch] = []  # the launches so far, with times since the job began

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
        self.take_note(Told(what, text))

    def verdict(self, verdict: Verdict) -> None:
        """Report a verdict."""
        self.tell("verdict", wording.verdict(verdict), "bold yellow")
        self.take_note(verdict)

    def launch_began(
        self, launch: int, nodes: Sequence[str], reserve: Sequence[str], gap: Gap | None, primary: str
    ) -> None:
        """Report that the program of a launch was started."""
        gap_s = {} if gap is None else asdict(gap)
        self.launches.append(Launch(launch, tuple(nodes), tuple(reserve), self.elapsed_s(), gap_s=gap_s))
        began = LaunchBegan(launch, tuple(nodes), tuple(reserve), primary, gap)
        self.take_note(began)
        self.tell("launch", wording.launch(began), "bold green")
        if gap is not None:
            self.tell("gap", wording.gap(gap))

    def launch_ended(self, why: Reason, cause: LaunchEndCause, wait_s: float = 0.0) -> None:
        """Note the end of the latest launch; the next one begins after a back-off of at least ``wait_s`` seconds."""
        if self.launches and not self.launches[-1].why:
            self.launches[-1] = replace(self.launches[-1], ended_s=self.elapsed_s(), why=why)
            self.take_note(LaunchEnded(self.launches[-1].number, why, cause, wait_s))

    def close(self, excluded: Sequence[str], exit_code: int, set_aside: str = "") -> None:
        """Write the table of launches and a summary; ``set_aside``: the primary, if its devices are in quarantine."""
        self.take_note(JobEnded(exit_code, tuple(excluded)))
        table = Table(title="launches", title_justify="left", title_style="bold")
        fill_with_launches(table, self.launches, 0.0, self.elapsed_s())
        self._console.print(table, width=min(MAX_COLUMNS, self._console.width))
        summary = wording.summary(len(self.launches), excluded, set_aside, self.elapsed_s(), exit_code)
        self._console.print(wrapped(summary, MAX_COLUMNS, 4), markup=False)
