"""Failures: kinds of fault under laggard and under torchrun, with the same toy program, in turns.

For each: does the job finish, is the right node named, how many seconds until it counts again, how many steps are
repeated. laggard has two nodes in use and one in reserve, torchrun two nodes and ``--max-restarts=3``. The toy program
steps ten times a second, saves every five steps, and meets its fault at step 12. A run that has not ended in time is
stopped, and said to be not over.
"""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Mapping

from tqdm import tqdm

from benchmarks.failure_kinds import KINDS, Kind
from benchmarks.failure_systems import SYSTEMS, Outcome, runs_on
from benchmarks.machine import description
from benchmarks.tables import table

COLUMNS = ("the job", "names node2", "counts again, s", "steps repeated")


def main(arguments: list[str]) -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks failures", description=__doc__)
    parser.add_argument("--limit", type=float, default=90.0, metavar="SECONDS", help="of a run (default: %(default)s)")
    parser.add_argument("--only", default="", metavar="TEXT", help="only kinds whose name contains TEXT (default: all)")
    options = parser.parse_args(arguments)
    kinds = [kind for kind in KINDS if options.only in kind.name]
    if not kinds:
        names = "; ".join(kind.name for kind in KINDS)
        parser.error(f"no kind of fault has {options.only!r} in its name; the kinds are: {names}")
    if importlib.util.find_spec("torch") is None:
        parser.error("the toy program needs PyTorch: pip install '.[torch]'")
    print(description())
    possible = [kind for kind in kinds if not kind.missing()]
    outcomes: dict[str, dict[Kind, Outcome]] = {system: {} for system in SYSTEMS}
    head, rule = table(["fault", *(f"{system}: {column}" for system in SYSTEMS for column in COLUMNS)], [])
    print(f"\n{head}\n{rule}", flush=True)
    runs = [(kind, system) for kind in possible for system in SYSTEMS if runs_on(system, kind)]
    with tqdm(total=len(runs), unit="run", disable=None) as bar:
        for kind in possible:
            for system in [each for each in SYSTEMS if (kind, each) in runs]:
                bar.set_description(f"{system}: {kind.name}"[:60])
                outcomes[system][kind] = SYSTEMS[system](kind, options.limit)
                bar.update()
            cells = [cell for system in SYSTEMS for cell in _cells(kind, outcomes[system].get(kind))]
            with tqdm.external_write_mode():  # each row as soon as it is known
                print(table([kind.name, *cells], [])[0], flush=True)
    for system, found in outcomes.items():
        print(f"\n{_in_all(system, found)}")
    for kind in kinds:
        if kind.missing():
            print(f"left out: {kind.name} ({kind.missing()})")
    return 0


def _in_all(system: str, found: Mapping[Kind, Outcome]) -> str:
    able = [outcome for kind, outcome in found.items() if kind.expected == "finish"]
    blamed = [(kind, outcome) for kind, outcome in found.items() if kind.culprit]
    finished = sum(outcome.finished for outcome in able)
    named = sum(outcome.named == {kind.culprit} for kind, outcome in blamed)
    took_s = sum(outcome.took_s for outcome in found.values())
    return (
        f"{system}: {finished} of {len(able)} jobs that could finish did; node2 named alone in {named} of "
        f"{len(blamed)}; {took_s / 60:.0f} min in all"
    )


def _cells(kind: Kind, outcome: Outcome | None) -> list[str]:
    if outcome is None:
        return ["-"] * len(COLUMNS)
    again = "" if outcome.again_s is None else f"{outcome.again_s:.1f}"
    named = "yes" if outcome.named == {"node2"} else ", ".join(sorted(outcome.named)) or "no"
    return [_end(kind, outcome), named if kind.culprit else "", again, str(outcome.repeated) if again else ""]


def _end(kind: Kind, outcome: Outcome) -> str:
    if outcome.finished:
        return "finishes"
    if outcome.exit_code is None:
        return f"not over after {outcome.took_s:.0f} s, launch {outcome.launches}"
    end = "killed" if outcome.exit_code < 0 else f"ends with {outcome.exit_code}"
    launches = f"{outcome.launches} {'launch' if outcome.launches == 1 else 'launches'}"
    return f"{end} after {launches}, {outcome.took_s:.0f} s" if kind.expected == "end" else f"{end}, {launches}"
