"""The loss of the primary: the job goes on from the copy of State on another node, with every acknowledged commit."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.clusters import lost_primaries, sshd
from tests.clusters.conftest import require
from tests.clusters.jobs import ClusterJob, Watch
from tests.clusters.lost_primaries import Outcome
from tests.clusters.machines import wait_for
from tests.clusters.site import DISK, NODES, Site, on_site
from tests.clusters.slurm_daemons import SlurmCluster
from tests.printed import COPIED_JOB, LOSE_PRIMARIES, REQUEUE, START_NOW
from tests.waiting import wait_until

Start = Callable[..., ClusterJob]

pytestmark = pytest.mark.timeout(900)

STATE = f"{DISK}/state"
FIRST, SECOND, THIRD, _ = NODES

# Rank 0 counts in State, and notes in a file that outlives every machine what was acknowledged.
COUNTING = """
    import os
    from pathlib import Path
    from laggard import Job, State

    folder = Path(__file__).parent
    state = State.current()
    if os.environ["NODE_RANK"] == "0":
        print(f"launch {Job.current().launch} has {len(state.get('counts', []))}", flush=True)
    with (folder / "acknowledged").open("a") as acknowledged:
        while os.environ["NODE_RANK"] == "0" and not (folder / "enough").exists():
            with state.transaction() as transaction:
                number = transaction.get("next", 0)
                transaction["next"] = number + 1
                transaction.append("counts", number)
            print(number, file=acknowledged, flush=True)
    while not (folder / "enough").exists():
        pass
    if os.environ["NODE_RANK"] == "0":
        (folder / "counts").write_text("\\n".join(map(str, state["counts"])))  # too long for one line of output
        print("counted", flush=True)
"""


@pytest.fixture(scope="module")
def slurm_options() -> Mapping[str, Any]:
    """Slurm itself notices that the primary is lost."""
    return {"slurmd_timeout_s": 20}


@pytest.fixture
def program(work: Path) -> Path:
    """Return the file in which the program notes what was acknowledged."""
    (work / "train.py").write_text(textwrap.dedent(COUNTING))
    return work / "acknowledged"


def numbers_in(file: Path) -> list[int]:
    return [int(line) for line in file.read_text().splitlines()] if file.exists() else []


def wait_for_more(job: ClusterJob, acknowledged: Path, more: int = 20) -> int:
    """Wait for this many commits beyond those that there are; return the last."""
    before = len(numbers_in(acknowledged))

    def are_there() -> bool:
        assert job.process.poll() is None, f"the job ended:\n{job.output}"
        return len(numbers_in(acknowledged)) >= before + more

    wait_until(are_there, lambda: job.output)
    return numbers_in(acknowledged)[-1]


def expect_all_there(job: ClusterJob, acknowledged: Path) -> None:
    """Expect that State has every acknowledged count, in order, and none twice."""
    job.wait_for("counted", outlived=True)
    counts = numbers_in(acknowledged.with_name("counts"))
    assert counts == list(range(len(counts)))
    noted = numbers_in(acknowledged)
    assert set(noted) <= set(counts)
    assert noted == sorted(set(noted))


def test_the_same_command_on_another_node_goes_on_when_the_primary_is_cut_off(
    hosts: Site, watch: Watch, start: Start, work: Path, program: Path
) -> None:
    command = on_site(COPIED_JOB).split()
    first = start(hosts.network.nodes[FIRST], {}, *command)
    first.wait_for(f"{THIRD} has a copy")
    wait_for_more(first, program)
    hosts.network.cut(FIRST)
    began_s = time.monotonic()
    second = start(hosts.network.nodes[SECOND], {}, *command, output="second")
    second.wait_for(f"taken over from the copy on {THIRD}")
    second.wait_for("launch [1-9]")
    wait_for_more(second, program, 1)
    print(f"counts again after {time.monotonic() - began_s:.1f} s")
    assert first.finish() != 0
    hosts.network.mend(FIRST)
    (work / "enough").touch()
    assert second.finish() == 0, second.output
    expect_all_there(second, program)
    watch.expect_no_processes()


def test_primaries_are_lost_one_after_the_other_and_no_acknowledged_commit_is(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The command of the documents, which loses more."""
    require(*sshd.PROGRAMS)
    *command, count = LOSE_PRIMARIES.split()
    assert command == ["python", "-m", lost_primaries.__name__]
    assert int(count) > 3
    lost_primaries.main(["3"])
    assert "\n3 primaries lost: " in capsys.readouterr().out


def test_a_commit_that_is_missing_twice_or_late_is_counted() -> None:
    there = [0, 1, 2, 3, 4]
    noted = [(0, 0), (0, 1), (1, 3), (2, 4)]
    assert str(Outcome.of(there, noted)) == "4 acknowledged commits: 0 missing, 0 twice, 0 late"
    assert Outcome.of(there, noted).is_well
    assert Outcome.of([0, 1, 2, 3], noted) == Outcome(4, 1, 0, 0)
    assert Outcome.of([*there, 4], [*noted, (2, 4)]) == Outcome(5, 0, 2, 0)
    assert Outcome.of(there, [(0, 0), (1, 2), (0, 1), (2, 4)]) == Outcome(4, 0, 0, 1)
    assert not Outcome.of(there, [(0, 0), (1, 2), (0, 1), (2, 4)]).is_well


@pytest.mark.usefixtures("repaired")
def test_the_relay_starts_the_job_again_on_the_next_node_when_the_primary_crashes(
    slurm: SlurmCluster, site: Site, watch: Watch, start: Start, work: Path, program: Path
) -> None:
    salloc = ("salloc", "--nodes=3", "--exclusive", "--no-kill", "--quiet")
    options = ("--nodes=2", "--resilient", "--per-node", "--state-copy", f"--state-dir={STATE}")
    job = start(site.network.login, slurm.environment, *salloc, "laggard", *options, "train.py")
    job.wait_for(f"{THIRD} has a copy")
    wait_for_more(job, program)
    site.network.nodes[FIRST].crash()
    began_s = time.monotonic()
    job.wait_for(f"the primary, {FIRST}, is lost: {SECOND} takes over")
    job.wait_for(f"taken over from the copy on {THIRD}")
    wait_for_more(job, program, 1)
    print(f"counts again after {time.monotonic() - began_s:.1f} s")
    (work / "enough").touch()
    assert job.finish() == 0, job.output
    expect_all_there(job, program)
    slurm.replace_crashed()
    watch.expect_no_processes()


@pytest.mark.usefixtures("repaired")
@pytest.mark.parametrize("loss", ["crash", "cut", "crash, with --no-kill"])
def test_a_batch_job_that_is_requeued_goes_on_from_the_copy(
    loss: str, slurm: SlurmCluster, site: Site, watch: Watch, start: Start, work: Path, program: Path
) -> None:
    """With --no-kill, Slurm leaves the job without its script and does not requeue it: its user does."""
    kept = "--no-kill" in loss
    wanted = f"--nodes=2-3 --exclusive --requeue --open-mode=append --output=output {'--no-kill' if kept else ''}"
    options = f"--nodes=2 --resilient --per-node --state-copy --state-dir={STATE}"
    (work / "job.sh").write_text(f"#!/bin/bash\n#SBATCH {wanted}\nexec laggard {options} train.py\n")
    job = start(site.network.login, slurm.environment, "sbatch", "--wait", "job.sh")
    job.wait_for(f"{THIRD} has a copy")
    wait_for_more(job, program)
    number = slurm.only_job("%A")
    if loss == "cut":
        site.network.cut(FIRST)
    else:
        site.network.nodes[FIRST].crash()
    began_s = time.monotonic()
    if kept:
        wait_for(lambda: FIRST not in slurm.only_job("%N"), "a job without its first node", 120)
        slurm.run(*site.as_user(*REQUEUE.split(), number))
    wait_for(lambda: slurm.only_job("%T") == "PENDING", "a requeued job", 120)
    pending_s = time.monotonic() - began_s
    slurm.run(*site.as_user(*START_NOW.replace("...", number).split()))
    job.wait_for(f"taken over from the copy on {THIRD}")
    wait_for_more(job, program, 1)
    print(f"requeued after {pending_s:.1f} s, counts again after {time.monotonic() - began_s:.1f} s")
    if loss == "cut":
        site.network.mend(FIRST)
    (work / "enough").touch()
    assert job.finish() == 0, job.output
    expect_all_there(job, program)
    slurm.replace_crashed()
    watch.expect_no_processes()
