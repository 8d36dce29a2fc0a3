"""Wrong usage is one sentence that names the value and what to do about it."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from laggard.resilience.command.option import declared_in, flag_of
from laggard.resilience.command.options import JobOptions
from laggard.resilience.command.run import run
from laggard.resilience.command.run_options import passed_on
from laggard.resilience.decision.beginning import begin
from laggard.resilience.decision.events import JobStatus, Settings
from laggard.resilience.errors import UsageError

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            JobOptions(local_nodes=3, nodes=4),
            "--nodes=4 is more than the allocation of 3: use at most 3, or ask for more",
        ),
        (JobOptions(local_nodes=3, idle=3), "--idle=3 leaves no node to run on: the allocation has 3, use 0 to 2"),
        (
            JobOptions(local_nodes=3, nodes=3, idle=1),
            "--nodes=3 and --idle=1 together are more than the allocation",
        ),
    ],
)
def test_wrong_usage_is_named(options: JobOptions, message: str) -> None:
    with pytest.raises(UsageError) as error:
        options.settings(options.local_nodes or 1)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


def test_a_job_that_may_go_on_with_fewer_nodes_begins_with_those_that_its_allocation_still_has() -> None:
    exhausting = JobOptions(nodes=4, resilient=True, exhaust_resources=True)
    settings = exhausting.settings(3, varies=True)
    assert settings.nodes == 4
    begun = begin(settings, ["n1", "n2", "n3"], [], 0.0)
    assert isinstance(begun, JobStatus)
    assert begun.roster.active == ("n1", "n2", "n3")
    for options, varies in ((exhausting, False), (JobOptions(nodes=4, resilient=True), True)):
        with pytest.raises(UsageError, match="--nodes=4 is more than the allocation of 3"):
            options.settings(3, varies=varies)


@pytest.mark.parametrize("text", ["soon", "0", "-3", "inf", "nan", ""])
def test_a_wrong_hang_timeout_is_named(text: str) -> None:
    with pytest.raises(
        UsageError, match=f"--hang-timeout={text} is not a valid timeout: give 1 to 1000000 seconds, or auto"
    ):
        JobOptions(hang_timeout=text).hang_timeout_s()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"exhaust_resources": True}, "--exhaust-resources has no effect without --resilient: add it"),
        ({"inline_probes": True}, "--inline-probes has no effect without --detect=slow-gpu: add it"),
        ({"detect": "sections", "inline_probes": True}, "--inline-probes has no effect without --detect=slow-gpu"),
        ({"groups": Path("a.yaml")}, "--groups=a.yaml has no effect without --detect: add it"),
        ({"restart_cost_s": 30.0}, "--restart-cost=30 has no effect without --detect: add it"),
        ({"link_interface": "ib"}, "--link-interface=ib has no effect without --detect=slow-link: add it"),
        (
            {"link_interface": "ib", "detect": "slow-gpu"},
            "--link-interface=ib has no effect without --detect=slow-link",
        ),
        ({"preload": "none"}, "--preload=none has no effect without --per-node or --per-device: add one"),
    ],
    ids=str,
)
def test_an_option_that_needs_another_is_refused_without_it(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as error:
        JobOptions(**given)
    assert str(error.value).startswith(message)
    assert str(error.value).endswith(", or leave this out")


@pytest.mark.parametrize("address", ["slack", "ftp://x/y", "https://", ""])
def test_lines_go_to_web_addresses_only(address: str) -> None:
    with pytest.raises(UsageError, match=f"--notify={address} is not a web address: give one that begins with https"):
        JobOptions(notify=address).check_notify()


@pytest.mark.parametrize(
    ("typed", "passed"),
    [
        ("--per-node train.py --resilient --lr=1", ["--resilient"]),
        ("train.py --nodes=2 --idle", ["--nodes=2", "--idle"]),
        ("--per-node -- train.py --resilient", []),
        ("train.py -- --resilient", ["--resilient"]),
        ("--nodes=2 train.py -r --resiliently", []),
    ],
)
def test_an_option_of_ours_after_the_program_is_noticed_unless_two_dashes_say_it_is_the_programs(
    typed: str, passed: list[str]
) -> None:
    words = typed.split()
    assert passed_on(words, words[words.index("train.py") + 1 :]) == passed


def test_every_option_that_another_needs_exists() -> None:
    flags = {flag_of(each.name) for each in fields(JobOptions)}
    needed = {needed.partition("=")[0] for each in fields(JobOptions) for needed in declared_in(each).needs}
    assert needed <= flags


def test_the_command_line_gives_what_is_declared() -> None:
    defaults = run.make_context("run", ["train.py"]).params
    assert JobOptions(**{name: defaults[name] for name in defaults.keys() - {"program", "arguments"}}) == JobOptions()
    given = run.make_context("run", ["-mN2", "--grace=2.5", "--no-report", "--state-dir=here", "train"]).params
    assert (given["module"], given["nodes"], given["grace_s"], given["report"]) == (True, 2, 2.5, False)
    assert given["state_dir"] == Path("here")


@pytest.mark.parametrize(
    "words",
    [["--detect=slow-gpu,slow-link"], ["--detect=slow-gpu", "--detect=slow-link"]],
)
def test_several_detectors_are_named_in_one_option_or_in_several(words: list[str]) -> None:
    assert run.make_context("run", [*words, "train.py"]).params["detect"] == ("slow-gpu", "slow-link")


def options_table() -> str:
    """Return the table of the operator's guide, made from the options' declarations."""
    rows = ["| option | what it does |", "|---|---|"]
    for each in fields(JobOptions):
        declared, flag = declared_in(each), flag_of(each.name)
        names = ", ".join(filter(None, (f"--no-{flag[2:]}" if each.default is True else flag, declared.short)))
        shown = f"{names} {declared.metavar or ''}".strip().replace("|", r"\|")
        rows.append(f"| `{shown}` | {declared.full_help} |")
    return "\n".join(rows) + "\n"


def test_the_guide_has_a_table_of_all_options() -> None:
    assert options_table() in (ROOT / "docs" / "guides" / "operator.md").read_text()


@pytest.mark.parametrize(
    ("expected_s", "left_s", "ends_s"),
    [(None, None, None), (600.0, None, 1600.0), (None, 300.0, 1300.0), (600.0, 300.0, 1300.0), (200.0, 300.0, 1200.0)],
)
def test_a_job_ends_when_it_is_expected_to_or_its_time_is_up(
    expected_s: float | None, left_s: float | None, ends_s: float | None
) -> None:
    assert JobOptions(expected_duration_s=expected_s).ends_s(1000.0, left_s) == ends_s


def test_a_hang_timeout_is_a_number_of_seconds_or_auto_or_off() -> None:
    assert [JobOptions(hang_timeout=text).hang_timeout_s() for text in ("2.5", "auto", None)] == [2.5, "auto", None]


@pytest.mark.parametrize(
    ("options", "nodes"),
    [
        (JobOptions(local_nodes=3), 3),
        (JobOptions(local_nodes=3, idle=1), 2),
        (JobOptions(local_nodes=3, nodes=1), 1),
        (JobOptions(local_nodes=3, nodes=1, idle=1), 1),
    ],
)
def test_the_nodes_in_use_follow_from_nodes_and_idle(options: JobOptions, nodes: int) -> None:
    assert options.settings(3) == Settings(nodes)


@pytest.mark.parametrize(
    ("options", "environ", "manager"),
    [
        (JobOptions(), {}, "local"),
        (JobOptions(), {"SLURM_JOB_ID": "7"}, "slurm"),
        (JobOptions(local_nodes=3), {"SLURM_JOB_ID": "7"}, "local"),
        (JobOptions(wlm="local"), {"SLURM_JOB_ID": "7"}, "local"),
        (JobOptions(hostlist="a,b"), {"SLURM_JOB_ID": "7"}, "ssh"),
        (JobOptions(wlm="slurm"), {"SLURM_JOB_ID": "7"}, "slurm"),
        (JobOptions(), {"PBS_JOBID": "7.pbs", "PBS_NODEFILE": "/var/spool/pbs/aux/7.pbs"}, "pbs"),
        (JobOptions(), {"PBS_NODEFILE": ""}, "local"),
        (JobOptions(), {"LSB_JOBID": "7", "LSB_HOSTS": "a a b b"}, "lsf"),
        (JobOptions(wlm="lsf"), {"LSB_MCPU_HOSTS": "a 2 b 2"}, "lsf"),
        (JobOptions(), {"LSB_DJOB_HOSTFILE": "7.hosts", "RAY_ADDRESS": "a:6379"}, "lsf"),
        (JobOptions(), {"SLURM_JOB_ID": "7", "PBS_NODEFILE": "hosts", "RAY_ADDRESS": "a:6379"}, "slurm"),
        (JobOptions(), {"RAY_ADDRESS": "a:6379"}, "ray"),
    ],
)
def test_the_manager_of_the_nodes_is_detected(options: JobOptions, environ: dict[str, str], manager: str) -> None:
    assert options.manager(environ) == manager


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (JobOptions(local_nodes=3, hostlist="a,b"), "--local-nodes=3 is for virtual nodes, not for ssh: leave it out"),
        (JobOptions(local_nodes=3, wlm="slurm"), "--local-nodes=3 is for virtual nodes, not for slurm: leave it out"),
        (JobOptions(hostlist="a", wlm="slurm"), "--hostlist and --hostfile are for ssh, not for --wlm=slurm"),
        (JobOptions(wlm="ssh"), "--wlm=ssh needs hosts: name them with --hostlist=A,B or --hostfile=FILE"),
        (JobOptions(wlm="slurm"), "--wlm=slurm needs a Slurm job (SLURM_JOB_ID): run laggard inside salloc"),
        (JobOptions(wlm="pbs"), "--wlm=pbs needs a PBS job (PBS_NODEFILE): run laggard inside qsub"),
        (JobOptions(wlm="lsf"), "--wlm=lsf needs an LSF job (LSB_MCPU_HOSTS): run laggard inside bsub"),
        (JobOptions(wlm="ray"), "--wlm=ray needs a Ray cluster: set RAY_ADDRESS"),
    ],
)
def test_an_unavailable_manager_is_named(options: JobOptions, message: str) -> None:
    with pytest.raises(UsageError) as error:
        options.manager({})
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    ("options", "may_miss"),
    [
        (JobOptions(nodes=2), 0),
        (JobOptions(nodes=2, resilient=True), 2),
        (JobOptions(idle=1, resilient=True), 1),
        (JobOptions(resilient=True), 0),
        (JobOptions(resilient=True, exhaust_resources=True), 3),
    ],
)
def test_a_job_can_begin_without_as_many_nodes_as_the_reserve_or_its_options_cover(
    options: JobOptions, may_miss: int
) -> None:
    assert options.may_miss(4) == may_miss
