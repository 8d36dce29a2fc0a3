"""Draw the guide's figure of a healthy and a slow device: ``python -m benchmarks.detection_picture FILE``."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from laggard.detectors import SlowGPUAnalysis
from laggard.detectors.statistics.history import CLOCKS, History

__all__ = ["draw"]

_ROUNDS, _DEVICES, _ONSET, _SLOW = 30, 16, 16, 13
_LINES = {2: ("tab:blue", "healthy, one disturbed round"), _SLOW: ("tab:red", "slow by 6 % from round 17")}


def draw(path: Path) -> None:
    """Simulate a job in which one of sixteen devices slows down by 6 %; plot readings and evidence by round."""
    rng = np.random.default_rng(11)
    chips, noise = rng.normal(0, 0.012, _DEVICES), rng.normal(0, 0.003, (_ROUNDS, _DEVICES))
    seconds = 0.01 * np.exp(chips + noise)
    seconds[5, 2] *= 1.12  # one disturbed round of a healthy device
    seconds[_ONSET:, _SLOW] *= 1.06
    names = tuple((f"node{number // 4}", str(number % 4)) for number in range(_DEVICES))
    analysis = SlowGPUAnalysis()
    evidence, verdict_round = [], 0
    for number, one_round in enumerate(seconds):
        verdicts = analysis.update_arrays(names, one_round[:, None])
        evidence.append(History.from_state(analysis.to_state()["history"]).evidence[0])
        verdict_round = verdict_round or (number if verdicts else 0)
    rounds = np.arange(1, _ROUNDS + 1)
    figure = Figure(figsize=(8, 6), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    for row in range(_DEVICES):
        color, label = _LINES.get(row, ("0.8", None))
        above.plot(rounds, 1000 * seconds[:, row], color=color, label=label)
        below.plot(rounds, np.array(evidence)[:, row], color=color, label=label)
    bar = 2 * np.log(100) + np.log(2 * CLOCKS / analysis.false_alarm_budget)
    below.axhline(bar, color="black", linestyle="--", label="the first excursion is found")
    below.axvline(verdict_round + 1, color="black", linestyle=":")
    above.set_ylabel("reading (ms)")
    below.set(xlabel="round", ylabel="evidence (nats)")
    above.legend(fontsize="small")
    below.legend(fontsize="small", loc="center left")
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    draw(Path(sys.argv[1]))
