"""Scale: a simulated job with many nodes, or real launches on a growing number of virtual nodes.

Without ``--nodes``: the primary of a job with ``--hosts`` times ``--devices`` devices, one round every ``--interval``
seconds. With ``--nodes``: startup time and memory of a job on this machine, for each number of virtual nodes. With
``--agents``: how soon that many agents have dialled the controller, and what their heartbeats cost it.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

from rich.console import Console
from rich.table import Table

from benchmarks.machine import description
from benchmarks.scaling.agents import AgentsSeen, measure_agents
from benchmarks.scaling.launches import Start, measure
from benchmarks.scaling.simulation import Scale, Seen, simulate
from laggard.collectors.probe_schedule import JITTER

__all__ = ["main"]


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks scale", description=__doc__)
    parser.add_argument("--nodes", type=_numbers, metavar="N,N", help="numbers of virtual nodes for real launches")
    parser.add_argument("--repeats", type=int, default=1, help="launches of each size (default: %(default)s)")
    parser.add_argument(
        "--hosts",
        type=_numbers,
        default=[1000, 10_000],
        metavar="N,N",
        help="numbers of simulated hosts (default: 1000,10000)",
    )
    parser.add_argument("--devices", type=int, default=8, help="devices per host (default: %(default)s)")
    parser.add_argument("--interval", type=float, default=10.0, help="seconds between rounds (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=16, help="number of rounds (default: %(default)s)")
    parser.add_argument(
        "--slow-round", type=int, default=8, help="round in which a device becomes slow (default: %(default)s)"
    )
    parser.add_argument("--agents", type=_numbers, metavar="N,N", help="numbers of agents that dial one controller")
    options = parser.parse_args(argv)
    console = Console(width=120)
    console.print(description())
    if options.nodes:
        console.print(_table_of_starts([measure(count) for count in options.nodes for _ in range(options.repeats)]))
        return 0
    if options.agents:
        console.print(_table_of_agents([measure_agents(count) for count in options.agents]))
        return 0
    scales = [
        Scale(hosts, options.devices, options.interval, options.rounds, options.slow_round) for hosts in options.hosts
    ]
    console.print(_table([(scale, simulate(scale)) for scale in scales]))
    return 0


def _table_of_agents(results: list[AgentsSeen]) -> Table:
    table = Table("", *(f"{seen.n_agents} agents" for seen in results))
    rows: dict[str, Callable[[AgentsSeen], str]] = {
        "until the last agent's first heartbeat": lambda seen: f"{seen.started_s:.1f} s",
        "the controller's processor time until then": lambda seen: f"{seen.start_busy_s:.1f} s",
        "- for each agent": lambda seen: f"{1000 * seen.start_busy_s / seen.n_agents:.2f} ms",
        "the agents' processor time until then": lambda seen: f"{seen.agents_busy_s:.1f} s",
        "heartbeats of each agent": lambda seen: f"every {seen.interval_s:.1f} s",
        "cores of the controller for heartbeats": lambda seen: f"{seen.load:.2f}",
        "a ping to all": lambda seen: f"{seen.pinged_s:.2f} s",
        "all dial again at once": lambda seen: f"{seen.back_s:.1f} s",
        "the controller's processor time meanwhile": lambda seen: f"{seen.back_busy_s:.1f} s",
        "nodes taken for lost at any time": lambda seen: str(seen.n_lost),
        "the controller's threads, at most": lambda seen: str(seen.n_threads),
        "the controller's memory": lambda seen: f"{seen.megabytes:.0f} MB",
    }
    for name, column in rows.items():
        table.add_row(name, *map(column, results))
    return table


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def _table(results: list[tuple[Scale, Seen]]) -> Table:
    table = Table("", *(f"{scale.hosts} x {scale.devices}" for scale, _ in results))
    columns: dict[str, Callable[[Scale, Seen], str]] = {
        "samples per second, sent / stored / refused": lambda scale, seen: (
            f"{seen.sent / scale.rounds / scale.interval_s:.0f} / {seen.stored / scale.rounds / scale.interval_s:.0f}"
            f" / {seen.refused}"
        ),
        "largest delay in sending a sample": lambda _, seen: f"{seen.behind_s:.1f} s",
        "rounds judged, devices in the last": lambda _, seen: (
            f"{len(seen.judged)}, {seen.judged[-1][1] if seen.judged else 0}"
        ),
        "end of round to judgement, median": lambda scale, seen: _lag(scale, seen),
        "judging a round: first, median": lambda _, seen: _judging(seen),
        "slow device to verdict": lambda scale, seen: _delay(scale, seen),
        "hosts accused": lambda _, seen: ", ".join(seen.accused) or "none",
        "time to decide": lambda _, seen: f"{seen.decided_s * 1000:.1f} ms",
        "fencing, record of the next launch": lambda _, seen: f"{seen.record_s * 1000:.0f} ms, {seen.record_mb:.2f} MB",
        "CPU time per round: watcher and controller": lambda _, seen: f"{seen.watcher_cpu_s:.2f} s",
        "CPU time per round: state server": lambda _, seen: f"{seen.server_cpu_s:.2f} s",
        "memory: watcher and controller": lambda _, seen: f"{seen.watcher_mb:.0f} MB",
        "memory: state server": lambda _, seen: f"{seen.server_mb:.0f} MB",
        "- samples": lambda _, seen: f"{seen.window_mb:.0f} MB",
        "append-only file": lambda _, seen: f"{seen.file_mb_s:.2f} MB/s",
    }
    for name, column in columns.items():
        table.add_row(name, *(column(scale, seen) for scale, seen in results))
    return table


def _lag(scale: Scale, seen: Seen) -> str:
    return f"{seen.lag_s(scale.interval_s, JITTER):.2f} s" if seen.judged else "none"


def _judging(seen: Seen) -> str:
    if not seen.judged:
        return "none"
    times_ms = [1000 * seconds for _, _, seconds in seen.judged]
    return f"{times_ms[0]:.0f} ms, {sorted(times_ms)[len(times_ms) // 2]:.0f} ms"


def _delay(scale: Scale, seen: Seen) -> str:
    if not seen.accused_s:
        return "none"
    delay_s = seen.accused_s - seen.begun_s
    return f"{delay_s:.1f} s, {delay_s / scale.interval_s:.1f} rounds"


def _table_of_starts(starts: list[Start]) -> Table:
    table = Table(
        "nodes", "command to first line", "per node", "CPU time until then", "memory", "per added node", "processes"
    )
    for before, start in zip([None, *starts], starts, strict=False):
        more = "" if before is None or before.nodes == start.nodes else _more(before, start)
        table.add_row(
            str(start.nodes),
            f"{start.seconds:.1f} s",
            f"{start.seconds / start.nodes:.2f} s",
            f"{start.cpu_s:.1f} s",
            f"{start.megabytes:.0f} MB",
            more,
            str(start.processes),
        )
    return table


def _more(before: Start, start: Start) -> str:
    return f"{(start.megabytes - before.megabytes) / (start.nodes - before.nodes):.0f} MB"
