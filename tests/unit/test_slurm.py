"""What Slurm is asked, and what follows from its answers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from laggard.resilience.agent.handshake import own_gpus
from laggard.resilience.allocation import slurm
from laggard.resilience.allocation.slurm import (
    SRUN_ARGS,
    Srun,
    check_runs_once,
    slurm_node_names,
    slurm_time_left_s,
    srun_args,
)
from laggard.resilience.command.cli import main
from laggard.resilience.command.run import leaves_of_job
from laggard.resilience.errors import AllocationError, ResourceManagerError, UsageError
from tests.fake_cupy.machine import Board, cupy_on


class Answers:
    """Stands in for Slurm's commands: the machine that runs unit tests has no Slurm."""

    def __init__(self, **said: str | None) -> None:
        self.said = said
        self.asked: list[Sequence[str]] = []

    def __call__(self, command: Sequence[str], _: float) -> str:
        self.asked.append(command)
        answer = self.said.get(next((word for word in command if word in self.said), ""))
        if answer is None:
            raise ResourceManagerError("did not answer within 20 s", command[0])
        return answer


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> Answers:
    answers = Answers()
    monkeypatch.setattr(slurm, "_output_of", answers)
    monkeypatch.setenv("SLURM_JOB_ID", "3")
    slurm._gpus_by_node.cache_clear()
    slurm._groups_by_node.cache_clear()
    return answers


def test_the_gpu_of_a_jobs_shards_is_known_although_cuda_is_not_told() -> None:
    with cupy_on(Board(), Board()):
        assert own_gpus({"SLURM_SHARDS_ON_NODE": "2", "GPU_DEVICE_ORDINAL": "1"}) == ["1"]
        assert own_gpus({"SLURM_SHARDS_ON_NODE": "2", "GPU_DEVICE_ORDINAL": "1", "CUDA_VISIBLE_DEVICES": "0"}) == ["0"]
        assert own_gpus({"GPU_DEVICE_ORDINAL": "1"}) == own_gpus({"SLURM_SHARDS_ON_NODE": "2"}) == ["0", "1"]


GPUS = "JobId=3 JobName=a\n   Nodes=n1 CPU_IDs=0 Mem=0 GRES=gpu:4\n   Nodes=n2 CPU_IDs=0 Mem=0 GRES=shard:2\n"


def test_a_step_asks_for_all_gpus_of_its_node_and_for_no_share_of_them(
    said: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    said.said = {"scontrol": GPUS}
    for name in ("SLURM_GPUS_PER_TASK", "SLURM_GPU_BIND", "SRUN_CPUS_PER_TASK", "SLURM_LABELIO"):
        monkeypatch.setenv(name, "1")
    command = Srun().command("n1", ["true"])
    assert command[:3] == ["env", "--unset=SLURM_GPUS_PER_TASK", "--unset=SLURM_GPU_BIND"]
    assert command[3:6] == ["--unset=SRUN_CPUS_PER_TASK", "--unset=SLURM_LABELIO", "srun"]
    assert "--gpus=4" in command
    assert not [word for word in Srun().command("n2", ["true"]) if word.startswith("--gpus")]
    assert len(said.asked) == 1


def test_one_step_starts_something_on_all_nodes_that_are_alike(said: Answers) -> None:
    said.said = {"scontrol": GPUS.replace("shard:2", "gpu:4"), "squeue": "3|3+0|RUNNING|9:00|n[1-2]\n"}
    ((hosts, command),) = Srun().commands_together(["n1", "n2"], ["true"]).items()
    assert hosts == ("n1", "n2")
    assert {"--nodes=2", "--ntasks=2", "--nodelist=n1,n2", "--gpus=8", "--input=all", "--wait=0"} <= set(command)
    assert {"--ntasks-per-node=1", "--no-kill", "--kill-on-bad-exit=0"} <= set(command)
    assert not Srun().commands_together(["n1", "n3"], ["true"]), "each of them has a step of its own"
    many = [f"m{number}" for number in range(7)]
    assert list(Srun(max_nodes_of_step=3).commands_together(many, ["true"])) == [tuple(many[:3]), tuple(many[3:6])]


def test_the_users_own_words_for_srun_stand_between_its_options_and_the_command(
    said: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    said.said = {"scontrol": GPUS.replace("shard:2", "gpu:4")}
    monkeypatch.setenv(SRUN_ARGS, "--container-mounts='/a b:/c' apptainer exec --nv train.sif")
    words = ["--container-mounts=/a b:/c", "apptainer", "exec", "--nv", "train.sif", "true"]
    assert Srun().command("n1", ["true"])[-7:] == ["--nodelist=n1", *words]
    ((_, together),) = Srun().commands_together(["n1", "n2"], ["true"]).items()
    assert together[-8:] == ["--nodelist=n1,n2", "--input=all", *words]


def test_words_for_srun_that_cannot_be_told_apart_are_refused() -> None:
    with pytest.raises(UsageError, match=r"^--srun-args=a 'b cannot be divided into words: no closing quotation"):
        srun_args("a 'b")


def test_a_step_of_a_heterogeneous_job_names_the_group_of_its_node(
    said: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    said.said = {"scontrol": GPUS, "squeue": "3|3+0|RUNNING|9:00|n1\n4|3+1|RUNNING|9:00|n[2-3]\n"}
    assert not [word for word in Srun().command("n3", ["true"]) if word.startswith("--het-group")]
    monkeypatch.setenv("SLURM_HET_SIZE", "2")
    assert "--het-group=1" in Srun().command("n3", ["true"])
    assert "--het-group=0" in Srun().command("n1", ["true"])


def test_without_an_answer_of_slurm_a_step_asks_for_no_gpus_and_no_time_limit_is_known(said: Answers) -> None:
    assert Srun().command("n3", ["true"])[0] == "srun"
    assert said.asked
    assert slurm_time_left_s() is None
    assert Srun().time_to_save().seconds is None
    assert Srun().avoid({"n2"}, set(), 2) == ""


def test_without_a_slurm_job_no_time_limit_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    assert slurm_time_left_s() is None


def test_the_leaves_are_those_of_slurm_unless_the_file_of_groups_names_nodes(said: Answers, tmp_path: Path) -> None:
    said.said = {"topology": "SwitchName=s1 Level=0 LinkSpeed=1 Nodes=n[1-2]\n"}
    groups = tmp_path / "groups.yaml"
    groups.write_text("rank 0-3: stage 0\n")
    assert leaves_of_job(None) == leaves_of_job(groups) == {"n1": "s1", "n2": "s1"}
    groups.write_text("n1: a\nn2: 2\n")
    assert leaves_of_job(groups) == {"n1": "a", "n2": "2"}


def test_no_leaves_are_known_without_a_job_or_an_answer_of_slurm(
    said: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert leaves_of_job(None) == {}
    assert said.asked
    said.said = {"topology": "SwitchName=s1 Level=0 LinkSpeed=1 Nodes=n[1-2]\n"}
    monkeypatch.delenv("SLURM_JOB_ID")
    assert leaves_of_job(None) == {}


def test_a_missing_command_of_slurm_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    monkeypatch.setenv("PATH", "")
    assert slurm_time_left_s() is None
    with pytest.raises(ResourceManagerError, match="sinfo is not on PATH, though this is a Slurm job"):
        Srun().words_on(["n1"])


def test_slurm_is_asked_about_everything_whatever_the_user_wants_to_see(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SQUEUE_PARTITION", "SINFO_PARTITION", "SQUEUE_FORMAT2", "SLURM_TOPO_LEN", "SQUEUE_ALL"):
        monkeypatch.setenv(name, "7")
    for command in ("squeue", "scontrol"):
        (tmp_path / command).write_text("#!/bin/sh\n/usr/bin/env | grep -E 'SQUEUE|SINFO|SCONTROL|TOPO|JOB' | sort\n")
        (tmp_path / command).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("SLURM_JOB_ID", "3")
    whole = ["SCONTROL_ALL=1", "SINFO_ALL=1", "SLURM_JOB_ID=3", "SLURM_TOPO_LEN=1000000000", "SQUEUE_ALL=1"]
    assert slurm._output_of(["squeue"], 20).split() == whole
    (tmp_path / "scontrol").write_text("#!/bin/sh\necho Node n1 not found; exit 1\n")  # on its standard output
    with pytest.raises(ResourceManagerError, match=r"^scontrol failed: Node n1 not found$"):
        slurm._output_of(["scontrol", "show", "node", "n1"], 20)


def test_the_nodes_of_a_job_that_has_ended_are_not_to_be_had(said: Answers) -> None:
    said.said = {"squeue": "3|3|TIMEOUT|0:00|n1\n", "scontrol": ""}
    with pytest.raises(AllocationError, match="Slurm has no nodes for job 3: it has ended, so start a new one"):
        slurm_node_names()
    said.said = {"squeue": "3|3|COMPLETING|0:00|n[1-2]\n", "scontrol": "NodeName=n1 NodeAddr=a1 Gres=x"}
    assert slurm_node_names() == {"n1": "a1", "n2": "n2"}


def test_a_requeued_job_asks_for_other_nodes_and_says_so(said: Answers) -> None:
    said.said = {
        "job": "JobId=3 ArrayJobId=2 ArrayTaskId=5 A=b\n   Partition=main ExcNodeList=(null)\n",
        "--format=%N": "n1\nn2\nn3\nn4\n",
        "--format=%N|%T|%E": "n1|idle|none\nn2|mixed|none\nn3|idle|none\nn4|down|none\n",
        "update": "",
    }
    assert Srun().avoid({"n2"}, set(), 2) == "ExcNodeList=n2"
    assert list(said.asked[-1]) == ["scontrol", "update", "JobId=2_5", "ExcNodeList=n2"]
    assert Srun().avoid({"n2"}, set(), 3) == ""  # n4 is down: there would be too few
    said.said["job"] = "JobId=3 A=b\n   Partition=main ExcNodeList=n2\n"
    assert Srun().avoid(set(), {"n2"}, 2) == "none any more (ExcNodeList=)"
    said.said["update"] = None  # it is not requeued, so Slurm refuses
    assert Srun().avoid({"n2"}, set(), 2) == ""


def test_laggard_that_srun_starts_several_times_says_that_it_belongs_outside() -> None:
    with pytest.raises(UsageError) as error:
        check_runs_once({"SLURM_STEP_NUM_TASKS": "2"})
    assert str(error.value) == (
        "srun runs laggard 2 times, but it belongs outside, and runs srun itself: "
        "leave srun out, as in salloc --nodes=2 laggard PROGRAM or in a batch script"
    )
    check_runs_once({"SLURM_STEP_NUM_TASKS": "1"})
    check_runs_once({"SLURM_STEP_NUM_TASKS": "2", slurm.RELAY_MARK: "x"})


def test_so_does_the_doctor_of_all_nodes(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "3")
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "2")
    assert main(["doctor", "--all-nodes"]) == 2
    assert "srun runs laggard 2 times, but it belongs outside" in capfd.readouterr().err
