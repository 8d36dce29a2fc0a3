"""Slow links in simulated jobs: who is found, how soon, who is accused wrongly; other tools' rules; cost per round."""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np

from benchmarks import link_budget, link_wires
from benchmarks.link_model import Fault, LinkJob, Traffic
from benchmarks.link_rules import dlrover, two_way_fit
from benchmarks.machine import description
from benchmarks.tables import table
from laggard.collectors.links.reading import LinkReading
from laggard.detectors.links.slow_link_analysis import SlowLinkAnalysis, link_of
from laggard.detectors.notices import LinksSlower
from laggard.detectors.slow_link import LINK_MIN_SLOWDOWN
from laggard.detectors.verdict import Verdict

__all__ = ["Outcome", "play"]

ROUND_S = 84.0
ONSET, AFTER = 20, 30  # rounds before and after a fault begins
NODES = (2, 3, 4, 8, 64, 1000)
RULES = {"DLRover": dlrover, "two-way fit": two_way_fit}
QUIET, LOUD = Traffic(), Traffic(bursts=0.2, own=0.1)
TRAFFICS = {
    "none": QUIET,
    "bursts of others in 20 % of readings": Traffic(bursts=0.2),
    "the job's own on 10 % of NICs, 4 rounds on average": Traffic(own=0.1),
    "both": LOUD,
}
NODE_30, NODE_10 = Fault("node", 1.3), Fault("node", 1.1)
LEAF, PAIR = Fault("leaf", 1.3), Fault("pair", 2.0, receives=True)
NETWORK, HALVES = Fault("network", 3.0), Fault("halves", 1.3)
FAULTS = {
    "node sends 30 % slower": (NODE_30, NODES, 6),
    "node receives 30 % slower": (replace(NODE_30, sends=False, receives=True), NODES[1:], 6),
    "node sends 10 % slower": (NODE_10, NODES, 24),
    "leaf's uplink 30 % slower": (LEAF, NODES[4:], 6),
    "pair twice as slow, both ways": (PAIR, NODES[1:], 30),
    "all links three times as slow": (NETWORK, NODES[1:], 6),
    "links between halves of unknown leaves 30 % slower": (HALVES, NODES[2:], 6),
    "three times as slow": (replace(HALVES, slowdown=3.0), NODES[2:], 6),
}
HARDER = {
    "node sends 30 % slower, bursts of others": (NODE_30, NODES, Traffic(bursts=0.2), ONSET),
    "node sends 30 % slower, own traffic": (NODE_30, NODES, Traffic(own=0.1), ONSET),
    "node sends 30 % slower, both": (NODE_30, NODES, LOUD, ONSET),
    "node sends 30 % slower from the first round": (NODE_30, NODES, QUIET, 0),
    "node sends 10 % slower from the first round": (NODE_10, NODES[1:], QUIET, 0),
}
NOISES = {
    "of repeats": QUIET,
    "normal, 8 %": Traffic(deviation=0.08),
    "AR .9, 2 %": Traffic(deviation=0.02, lasts=0.9),
}
TWO = {
    "none": (),
    "100 %, the other never": ((2.0, 0),),
    "30 and 30 %": ((1.3, 0), (1.3, 0)),
    "30 and 100 %": ((1.3, 0), (2.0, 0)),
    "30 %, 40 rounds later 30 %": ((1.3, 0), (1.3, 40)),
    "30 %, 40 rounds later 100 %": ((1.3, 0), (2.0, 40)),
    "100 %, 40 rounds later 30 %": ((2.0, 0), (1.3, 40)),
}
"""How much slower the two links of node 0 of three become, and how many rounds after the onset."""
TWO_ONSET, TWO_AFTER = 40, 60
SELDOM = (1.3, 2.0, 3.0)


@dataclass(frozen=True)
class Outcome:
    """What one job came to.

    Attributes
    ----------
    delay
        Rounds from the fault to the first verdict that names it, from 1; ``None`` if there was none.
    restarts, reports
        Wrong verdicts: against a healthy node, and any other.
    """

    delay: int | None
    restarts: int
    reports: int


def play(
    count: int, faults: Sequence[Fault], traffic: Traffic, seed: int, rounds: int, *, meets_again: bool = True
) -> Outcome:
    """Simulate one job of so many nodes and rounds, and judge it; with several faults, they are found together."""
    job = LinkJob(count, faults, traffic, seed)
    analysis = SlowLinkAnalysis(job.nodes, job.leaves)
    since = max((fault.since for fault in faults), default=rounds)
    delay, wrong = None, list[Verdict | LinksSlower]()
    for number, flows in enumerate(job.rounds(rounds, analysis.pairs_to_meet if meets_again else list)):
        begun = [fault for fault in job.faults if number >= fault.since]
        verdicts = analysis.add_flows(flows, ROUND_S * number)
        notices = [each for each in analysis.take_notices() if isinstance(each, LinksSlower)]
        said: list[Verdict | LinksSlower] = [*verdicts, *notices]
        for found in said:
            if number >= since and _names(found, begun, job):
                delay = delay or number - since + 1
            elif not any(_names(found, [fault], job) for fault in begun):
                wrong.append(found)
    restarts = sum(isinstance(found, Verdict) and found.action == "restart" for found in wrong)
    return Outcome(delay, restarts, len(wrong) - restarts)


def _names(found: Verdict | LinksSlower, faults: Sequence[Fault], job: LinkJob) -> bool:
    """Return whether what is said names what is slow, and its direction; of two links of a node, that is the node."""
    fault, *others = faults
    if isinstance(found, LinksSlower):
        half = (len(job.nodes) + 1) // 2
        halves = (tuple(job.nodes[:half]), tuple(job.nodes[half:])) if fault.kind == "halves" else ()
        return fault.kind in {"network", "halves"} and set(found.sides) == set(halves)
    link = link_of(found)
    if others:
        return link.kind == "node" and link.names == (job.nodes[0],)
    if fault.kind in {"network", "halves"}:
        return False
    if link.kind == "link":
        return link.names[0] == job.nodes[0 if fault.sends else 1]
    sides = {(True, False): "sends", (False, True): "receives", (True, True): "both"}
    if fault.kind == "pair":
        return link.kind == "pair" and set(link.names) == {job.nodes[0], job.nodes[fault.partner or 0]}
    named = job.nodes[0] if fault.kind == "node" else "leaf0"
    return link.kind == fault.kind and link.names == (named,) and link.side == sides[fault.sends, fault.receives]


def play_all(
    count: int, faults: Sequence[Fault], traffic: Traffic, jobs: int, rounds: int, *, meets_again: bool = True
) -> list[Outcome]:
    """Simulate jobs with the seeds 0, 1, ..., on all processors."""
    one = partial(_play_seed, count, faults, traffic, rounds, meets_again)
    with ProcessPoolExecutor() as processes:
        return list(processes.map(one, range(jobs), chunksize=max(1, jobs // 20)))


def _play_seed(
    count: int, faults: Sequence[Fault], traffic: Traffic, rounds: int, meets_again: bool, seed: int
) -> Outcome:
    return play(count, faults, traffic, seed, rounds, meets_again=meets_again)


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def _shares(delays: Sequence[int | None], within: int) -> tuple[str, str]:
    found = [delay for delay in delays if delay is not None]
    share = sum(delay <= within for delay in found) / len(delays)
    return _percent(share), f"{statistics.median(found):g}" if found else "-"


def found_rows(nodes: Sequence[int], options: argparse.Namespace) -> Iterator[list[object]]:
    """Yield rows: what was found within its deadline, by us and by other rules, and who was accused wrongly."""
    for what, (fault, counts, within) in FAULTS.items():
        fault = replace(fault, since=ONSET)
        for count in (count for count in counts if count in nodes):
            outcomes = play_all(count, [fault], QUIET, options.jobs, ONSET + AFTER)
            share, median = _shares([outcome.delay for outcome in outcomes], within)
            wrong = sum(outcome.restarts for outcome in outcomes), sum(outcome.reports for outcome in outcomes)
            others = [_of_rule(name, count, fault, max(1, len(outcomes) // 4), within) for name in RULES]
            yield [what, f"{count:,}", len(outcomes), within, share, median, *wrong, *others]


def _of_rule(name: str, count: int, fault: Fault, jobs: int, within: int) -> str:
    """Return in which share of jobs a rule finds the node in time, and how many other nodes it accuses a job."""
    found = wrong = 0
    for seed in range(jobs):
        rounds = RULES[name](LinkJob(count, [fault], QUIET, seed), ONSET + AFTER)
        accused: set[int] = set()
        for number, now in enumerate(rounds):
            accused |= now
            if number == ONSET + within - 1 and fault.kind == "node":
                found += 0 in now | accused
        wrong += len(accused - ({0} if fault.kind == "node" else set()))
    share = _percent(found / jobs) if fault.kind == "node" else "-"
    return f"{share}, {wrong / jobs:.2g} wrong"


def harder_rows(nodes: Sequence[int], options: argparse.Namespace) -> Iterator[list[object]]:
    """Yield rows of cases without a promise: what is found within 6, 24 and 50 rounds."""
    for what, (fault, counts, traffic, since) in HARDER.items():
        for count in (count for count in counts if count in nodes):
            jobs = options.jobs if count < max(NODES) else max(1, options.jobs // 5)
            some = play_all(count, [replace(fault, since=since)], traffic, jobs, since + 50)
            delays = [outcome.delay for outcome in some]
            within = [_shares(delays, limit)[0] for limit in (6, 24, 50)]
            yield [what, f"{count:,}", len(some), *within, _shares(delays, 50)[1], sum(each.restarts for each in some)]


def healthy_rows(nodes: Sequence[int], options: argparse.Namespace) -> Iterator[list[object]]:
    """Yield rows: wrong verdicts in one healthy job."""
    for what, traffic in TRAFFICS.items():
        for count in nodes:
            rounds = min(options.rounds, max(100, 40 * options.rounds // count))
            ours = play(count, (), traffic, 1, rounds)
            others = [sum(map(len, rule(LinkJob(count, (), traffic, 1), rounds))) for rule in RULES.values()]
            yield [what, f"{count:,}", f"{count * rounds:,}", ours.restarts, ours.reports, *others]


def two_rows(nodes: Sequence[int], options: argparse.Namespace) -> Iterator[list[object]]:
    """Yield rows: both links of one of three nodes become slow, at once or one after the other."""
    del nodes
    for noise, traffic in NOISES.items():
        for what, slow in TWO.items():
            faults = [
                Fault("pair", times, receives=True, since=TWO_ONSET + later, partner=partner)
                for partner, (times, later) in enumerate(slow, 1)
            ]
            rounds = max((fault.since for fault in faults), default=TWO_ONSET) + TWO_AFTER
            outcomes = play_all(3, faults, traffic, options.jobs, rounds)
            found, median = _shares([outcome.delay for outcome in outcomes], TWO_AFTER)
            wrong = sum(outcome.restarts for outcome in outcomes), sum(outcome.reports for outcome in outcomes)
            yield [noise, what, len(outcomes), found if faults else "-", median, *wrong]


def budget_rows(nodes: Sequence[int], options: argparse.Namespace) -> Iterator[list[object]]:
    """Yield rows: healthy jobs of three and four nodes that accuse one, and that restart."""
    del nodes
    noises = {**NOISES, "AR .98, 2 %": Traffic(deviation=0.02, lasts=0.98)}
    return link_budget.rows(noises, 30 * options.jobs, ROUND_S, LINK_MIN_SLOWDOWN)


def seldom_rows(nodes: Sequence[int], options: argparse.Namespace) -> Iterator[list[object]]:
    """Yield rows: a pair becomes slow that the schedule alone has meet every second to fifth round."""
    del nodes
    counts = [count for count in (16, 64) if count <= options.largest]
    for count, slowdown in product(counts, SELDOM):
        fault = Fault("pair", slowdown, receives=True, since=3 * ONSET)
        columns: list[object] = []
        for meets_again in (False, True):
            outcomes = play_all(count, [fault], QUIET, options.jobs, 3 * ONSET + AFTER, meets_again=meets_again)
            delays = sorted(outcome.delay or math.inf for outcome in outcomes)
            wrong = sum(outcome.restarts + outcome.reports for outcome in outcomes)
            columns += [f"{statistics.median(delays):g}", f"{delays[int(0.95 * len(delays))]:g}", wrong]
        yield [count, f"{100 * (slowdown - 1):.0f} %", options.jobs, *columns]
    lasting = {"bursts of 2 rounds on 5 % of paths": Traffic(bursts=0.05, burst_rounds=2.0)}
    for count, (what, traffic) in product(counts, {"none": QUIET, "both": LOUD, **lasting}.items()):
        columns = []
        for meets_again in (False, True):
            outcomes = play_all(count, (), traffic, options.jobs, 100, meets_again=meets_again)
            columns += ["-", "-", sum(outcome.restarts + outcome.reports for outcome in outcomes)]
        yield [count, f"nothing; traffic: {what}", options.jobs, *columns]


def cost_rows(nodes: Sequence[int], options: argparse.Namespace) -> Iterator[list[object]]:
    """Yield rows: what a round costs with so many nodes, and with 10,000 unless only small jobs are asked for."""
    for count in [*nodes, *([10_000] if options.largest >= max(NODES) else [])]:
        yield cost_row(count, options.cost_rounds)


def cost_row(count: int, rounds: int) -> list[object]:
    """Return a row: median milliseconds that a round costs the analysis, and the conversion of its readings."""
    job = LinkJob(count, traffic=LOUD)
    analysis = SlowLinkAnalysis(job.nodes, job.leaves)
    by_readings = SlowLinkAnalysis(job.nodes, job.leaves)
    spent_s: list[float] = []
    all_spent_s: list[float] = []
    for number, flows in enumerate(job.rounds(rounds)):
        readings = [
            LinkReading(number, job.nodes[sender], job.nodes[receiver], float(np.exp(log_time)), 1, foreign)
            for sender, receiver, log_time, foreign in zip(
                flows.sender.tolist(),
                flows.receiver.tolist(),
                flows.log_time.tolist(),
                flows.foreign.tolist(),
                strict=True,
            )
        ]
        begun_s = time.process_time()
        analysis.add_flows(flows)
        spent_s.append(time.process_time() - begun_s)
        begun_s = time.process_time()
        by_readings.add_round(readings)
        all_spent_s.append(time.process_time() - begun_s)
    half = rounds // 2  # later rounds: all baselines are known
    medians = (f"{1e3 * statistics.median(each[half:]):.1f}" for each in (spent_s, all_spent_s))
    return [f"{count:,}", f"{len(flows):,}", *medians]


def draw(path: Path, jobs: int, nodes: int = 64) -> None:
    """Plot which share of jobs has found each fault so many rounds after it began."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    after = np.arange(AFTER + 1)
    for what, (fault, _, _) in FAULTS.items():
        outcomes = play_all(nodes, [replace(fault, since=ONSET)], QUIET, jobs, ONSET + AFTER)
        delays = np.array([np.inf if each.delay is None else each.delay for each in outcomes])
        axes.step(after, [100 * (delays <= rounds).mean() for rounds in after], where="post", label=what)
    axes.set(xlabel="rounds since the fault began", ylabel=f"found, % of {jobs} jobs", title=f"{nodes} nodes")
    axes.legend(fontsize="small")
    figure.savefig(path, dpi=110)


PARTS: Mapping[str, tuple[list[str], Callable[[Sequence[int], argparse.Namespace], Iterator[list[object]]]]] = {
    "found": (
        ["fault", "N", "jobs", "within", "found", "median round", "wrong restarts", "wrong reports", *RULES],
        found_rows,
    ),
    "harder": (
        ["fault", "N", "jobs", "within 6", "within 24", "within 50", "median round", "wrong restarts"],
        harder_rows,
    ),
    "two": (
        ["noise", "slower", "jobs", "named", "median round", "others: wrong restarts", "wrong reports"],
        two_rows,
    ),
    "budget": (link_budget.HEAD, budget_rows),
    "seldom": (
        [
            "N",
            "pair slower by",
            "jobs",
            "by schedule: median round",
            "95 %",
            "wrong",
            "met again: median round",
            "95 %",
            "wrong",
        ],
        seldom_rows,
    ),
    "healthy": (["traffic", "N", "node-rounds", "wrong restarts", "wrong reports", *RULES], healthy_rows),
    "cost": (["N", "transfers", "analysis, ms a round", "with readings, ms"], cost_rows),
}


def _on_wires(repeats: int, fault: str) -> int:
    if reason := link_wires.missing():
        sys.stderr.write(f"python -m benchmarks links --wires: {reason}\n")
        return 2
    print(description())
    print("\n## Wires\n", *table(link_wires.HEAD, link_wires.rows(repeats, fault)), sep="\n", flush=True)
    return 0


def main(arguments: Sequence[str]) -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks links", description=__doc__)
    parser.add_argument("--jobs", type=int, default=100, help="jobs of each kind (default: %(default)s)")
    parser.add_argument("--largest", type=int, default=1000, help="leave out larger jobs (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=2500, help="rounds of the healthy jobs (default: %(default)s)")
    parser.add_argument("--cost-rounds", type=int, default=30, help="rounds to measure (default: %(default)s)")
    parser.add_argument("--only", choices=PARTS, help="print one table only")
    parser.add_argument("--plot", type=Path, help="draw how soon faults are found to this file")
    parser.add_argument("--wires", action="store_true", help="print only what is found on real wires; needs root")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each, with --wires (default: %(default)s)")
    parser.add_argument("--fault", default="", help="only faults whose name contains this, with --wires")
    options = parser.parse_args(arguments)
    if options.wires:
        return _on_wires(options.repeats, options.fault)
    nodes = [count for count in NODES if count <= options.largest]
    print(description())
    for part, (head, rows_of) in PARTS.items():
        if options.only in (None, part):
            print(f"\n## {part.capitalize()}\n", *table(head, rows_of(nodes, options)), sep="\n", flush=True)
    if options.plot:
        draw(options.plot, options.jobs)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
