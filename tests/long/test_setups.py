"""Set-ups of training with PyTorch, killed three times: their losses are those of a run in which nothing happened."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.integration.jobs import RunningJob

pytest.importorskip("torch", reason="needs the extra `torch`")

SETUPS = Path(__file__).parent / "setups"
N_STEPS, KILLS = 14, ("3", "8", "11")
# Each rank of a few starts workers or a compiler.
WITH_TWO_RANKS = {"compiled", "expert_parallel", "iterable", "optimizers", "persistent_workers", "stateful_loader"}
DEADLINE_S = 400.0


def steps(job: RunningJob, ranks: int) -> list[str]:
    """Return what each rank printed at each step, once the job has ended; a step that is repeated is the same."""
    assert job.finish(DEADLINE_S) == 0, job.everything()
    lines = sorted(set(re.findall(r"r\d step \d+: .*$", job.output, re.MULTILINE)))
    assert len({line.split(":")[0] for line in lines}) == len(lines) == ranks * N_STEPS, job.everything()
    return lines


@pytest.mark.timeout(900)
@pytest.mark.parametrize("setup", sorted(each.stem for each in SETUPS.glob("*.py") if each.stem != "parts"))
def test_a_set_up_that_is_killed_three_times_has_the_losses_of_one_that_is_not(
    setup: str, start_job: Callable[..., RunningJob]
) -> None:
    if setup == "stateful_loader" and not find_spec("torchdata"):
        pytest.skip("needs torchdata")
    ranks = 2 if setup in WITH_TWO_RANKS else 4
    job = ("--local-nodes=1", f"--virtual-gpus={ranks}", "--resilient", "--per-device", str(SETUPS / f"{setup}.py"))
    disturbed = start_job(*job, *KILLS)
    found = steps(disturbed, ranks)
    assert disturbed.account.count("was killed by SIGKILL") == len(KILLS), disturbed.everything()
    begun = re.findall(r"r0 launch \d: from step (\d+)$", disturbed.output, re.MULTILINE)
    assert begun == ["0", "2", "8", "10"], disturbed.everything()
    assert found == steps(start_job(*job), ranks)
