"""``python -m benchmarks NAME [OPTIONS]``: run one benchmark and print its tables."""

from __future__ import annotations

import importlib
import sys

BENCHMARKS = {
    "chaos": "kills at random moments: is every committed increment there exactly once",
    "detection": "false alarms, detection rate and delay on real GPU timings, beside the peers' rules",
    "faults": "from a kill until it is noticed, and until the program counts again, beside Ray's own actor restart",
    "intrusion": "what probes cost a program, in a process beside it and in its gaps, beside Dragon's documented probe",
    "probes": "the probes themselves: repeatability, the way to the peak, what they react to, false verdicts",
    "restart": "after a killed worker, beside torchrun and Ray; from a verdict to the next launch's first line",
    "scale": "a simulated job of 10,000 nodes, and real launches on up to 32 virtual nodes",
    "telemetry": "the cost of a sample, queries, the store, beside Dragon's telemetry",
    "state": "State beside the plain client and files on disk",
}


def main(arguments: list[str]) -> int:
    """Run the benchmark that the first argument names."""
    if not arguments or arguments[0] not in BENCHMARKS:
        sys.stderr.write("usage: python -m benchmarks NAME [OPTIONS]\n\n")
        sys.stderr.writelines(f"  {name:<10} {what}\n" for name, what in BENCHMARKS.items())
        return 2
    return int(importlib.import_module(f"benchmarks.{arguments[0]}").main(arguments[1:]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
