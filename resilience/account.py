"""What the user reads: one line for each thing that happens, and a closing table."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

__all__ = ["Account", "Gap", "LaunchSummary"]


@dataclass(frozen=True, slots=True)
class Gap:
    """From the decision to relaunch until the next launch's program is started, in seconds.

    Attributes
    ----------
    stop_s
        Until the old program had ended.
    fence_s
        Until nothing of it could write, all that it wrote was on disk, and nothing of it ran on the primary.
    nodes_s
        Until the bad node was out of the cluster, the new one in it, and nothing of the old launch ran on the others.
    """

    stop_s: float
    fence_s: float
    nodes_s: float

    @property
    def total_s(self) -> float:
        """The whole gap."""
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
        Its nodes, the primary first.
    began_s
        When its program was started, in seconds since the job began.
    gap
        What it cost to get here from the launch before; ``None`` for the first launch.
    ended_s
        When its program had ended, in seconds since the job began.
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
    """Tells the user on standard error; the program's standard output stays its own.

    Parameters
    ----------
    console
        Where to write.
    clock
        Monotonic seconds.
    """

    def __init__(self, console: Console | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console or Console(stderr=True, highlight=False, soft_wrap=True)
        self._clock = clock
        self._began_s = clock()
        self.launches: list[LaunchSummary] = []

    def elapsed_s(self) -> float:
        """Seconds since the job began."""
        return self._clock() - self._began_s

    def tell(self, what: str, text: str, style: str = "") -> None:
        """Write one line: the time since the job began, a word, and the story."""
        if self._console.is_terminal:
            self._console.file.write("\r\x1b[2K")  # a progress bar of the program may stand on this line
        minutes, seconds = divmod(self.elapsed_s(), 60)
        self._console.print(f"[dim]{minutes:02.0f}:{seconds:04.1f}[/] [{style or 'bold'}]{what:<9}[/] ", end="")
        self._console.print(text, markup=False)

    def launch_began(self, launch: int, nodes: Sequence[str], reserve: Sequence[str], gap: Gap | None) -> None:
        """Tell that a launch's program was started."""
        self.launches.append(LaunchSummary(launch, tuple(nodes), self.elapsed_s(), gap))
        waiting = f"; reserve: {', '.join(reserve)}" if reserve else ""
        self.tell("launch", f"{launch} on {', '.join(nodes)} (primary: {nodes[0]}){waiting}", "bold green")
        if gap is not None:
            self.tell("gap", str(gap))

    def launch_ended(self, why: str) -> None:
        """Note the end of the newest launch."""
        if self.launches and not self.launches[-1].why:
            self.launches[-1].ended_s = self.elapsed_s()
            self.launches[-1].why = why

    def close(self, excluded: Sequence[str], exit_code: int) -> None:
        """Write the closing table."""
        table = Table(title="launches", title_justify="left", title_style="bold")
        for column in ("launch", "nodes", "began", "ran", "gap before", "ended because"):
            table.add_column(column, justify="right" if column in {"began", "ran", "gap before"} else "left")
        for row in self.launches:
            table.add_row(
                str(row.launch),
                ", ".join(row.nodes),
                f"{row.began_s:.1f} s",
                f"{row.ended_s - row.began_s:.1f} s",
                "" if row.gap is None else f"{row.gap.total_s:.1f} s",
                row.why,
            )
        self._console.print(table)
        names = f" ({', '.join(excluded)})" if excluded else ""
        self._console.print(
            f"{_count(self.launches, 'launch', 'launches')}, {_count(excluded, 'node', 'nodes')} excluded{names}, "
            f"{self.elapsed_s():.1f} s in all, exit code {exit_code}"
        )


def _count(things: Sequence[object], one: str, several: str) -> str:
    return f"{len(things)} {one if len(things) == 1 else several}"
