"""``python -m benchmarks NAME [OPTIONS]``: run one benchmark and print its tables."""

from __future__ import annotations

import importlib
import sys

BENCHMARKS = {
    "blame": "jobs with causes drawn at random, run for real: healthy nodes excluded, jobs ended that could go on",
    "chaos": "random kills, stops and failures: checks that every committed increment is stored exactly once",
    "checkpoint": "checkpoints compared with torch.save and torch.distributed.checkpoint; copies; the primary's load",
    "detection": "false alarms, detection rate and delay on real GPU timings, compared with other tools' rules",
    "failure-outputs": "labelled outputs of failed jobs: is the right line quoted, is the kind right",
    "failures": "60 kinds of fault: does the job finish, is the right node named, compared with torchrun",
    "faults": "time until a kill is noticed and until the program works again, compared with Ray's actor restart",
    "first-day": "everything that ten minutes on a GPU can tell, with nothing but what the probes need",
    "intrusion": "what probes cost a program, as a separate process and inline; Dragon's documented probe",
    "links": "slow links, simulated and on real wires: found how soon, false alarms, cost; compared with other rules",
    "outages": "how soon a job goes on after what its program needs was away",
    "outsider": "steps per second of a job while another user scans and holds its ports",
    "page": "the page of a job: how soon all devices are drawn, and how large a report is",
    "poisoned": "jobs whose newest save is bad go on from an older one, healthy ones never go back",
    "probes": "the probes: repeatability, distance from peak, what they react to, false verdicts",
    "restart": "recovery from a killed worker, compared with torchrun and Ray; time from a verdict to the next launch",
    "simulation": "the real controller and agents on simulated machines, through a million events with faults",
    "sections": "what a section of the program's own costs it",
    "site": "a site of 1,000 nodes with a few that fail often, with and without a memory, simulated",
    "scale": "a simulated job with 10,000 nodes, and real launches on virtual nodes",
    "telemetry": "cost of a sample, queries and the store, compared with Dragon's telemetry",
    "top": "the processor time of `laggard top` beside a job of 128 devices",
    "state": "State compared with the plain Redis client and with files",
}


def main(arguments: list[str]) -> int:
    """Run the benchmark named by the first argument."""
    if not arguments or arguments[0] not in BENCHMARKS:
        sys.stderr.write("usage: python -m benchmarks NAME [OPTIONS]\n\n")
        sys.stderr.writelines(f"  {name:<10} {what}\n" for name, what in BENCHMARKS.items())
        return 2
    module = importlib.import_module(f"benchmarks.{arguments[0].replace('-', '_')}")
    return int(module.main(arguments[1:]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
