"""Wrong usage is one sentence that names the value and what to do about it."""

from __future__ import annotations

from pathlib import Path

import pytest

from laggard.collectors.probes import PROBE_NAMES
from laggard.resilience.decision.events import Settings
from laggard.resilience.decision.options import JobOptions, UsageError


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            JobOptions(local_nodes=3, nodes=4),
            "--nodes=4 is more than the allocation of 3: use at most 3, or ask for more",
        ),
        (JobOptions(local_nodes=3, nodes=0), "--nodes=0 leaves no node to run on: use 1 to 3"),
        (JobOptions(local_nodes=3, nodes=-1), "--nodes=-1 leaves no node to run on: use 1 to 3"),
        (JobOptions(local_nodes=3, idle=3), "--idle=3 leaves no node to run on: the allocation has 3, use 0 to 2"),
        (JobOptions(local_nodes=3, idle=-1), "--idle=-1 leaves no node to run on: the allocation has 3, use 0 to 2"),
        (
            JobOptions(local_nodes=3, nodes=3, idle=1),
            "--nodes=3 and --idle=1 together are more than the allocation",
        ),
        (
            JobOptions(exhaust_resources=True),
            "--exhaust-resources has no effect without --resilient",
        ),
    ],
)
def test_wrong_usage_is_named(options: JobOptions, message: str) -> None:
    with pytest.raises(UsageError) as error:
        options.settings(options.local_nodes or 1)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", ["soon", "0", "-3", "inf", "nan", ""])
def test_a_wrong_hang_timeout_is_named(text: str) -> None:
    with pytest.raises(
        UsageError, match=f"--hang-timeout={text} is not a valid timeout: give 1 to 1000000 seconds, or auto"
    ):
        JobOptions(hang_timeout=text).hang_timeout_s()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            JobOptions(detect="slow-gpu", probes_in_turn="clock,fp8"),
            "--probes-in-turn=fp8 is not a probe: use clock",
        ),
        (JobOptions(probes_in_turn="all"), "--probes-in-turn has no effect without --detect=slow-gpu: add it"),
        (
            JobOptions(inline_probes=True),
            "--inline-probes has no effect without --detect=slow-gpu: add it, or leave this out",
        ),
        (
            JobOptions(detect="sections", inline_probes=True),
            "--inline-probes has no effect without --detect=slow-gpu: add it, or leave this out",
        ),
    ],
)
def test_wrong_probes_are_named(options: JobOptions, message: str) -> None:
    with pytest.raises(UsageError) as error:
        options.probe_names()
    assert str(error.value).startswith(message)


def test_probes_in_turn_are_some_or_all_or_none() -> None:
    assert JobOptions(detect="slow-gpu", probes_in_turn="triad,clock").probe_names() == ("triad", "clock")
    assert JobOptions(detect="slow-gpu", probes_in_turn="all").probe_names() == PROBE_NAMES
    assert JobOptions(detect="slow-gpu").probe_names() == JobOptions().probe_names() == ()


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
    ],
)
def test_the_manager_of_the_nodes_is_detected(options: JobOptions, environ: dict[str, str], manager: str) -> None:
    assert options.manager(environ) == manager


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (JobOptions(local_nodes=0), "--local-nodes=0 is out of range: use 1 to 250"),
        (JobOptions(local_nodes=251), "--local-nodes=251 is out of range"),
        (JobOptions(local_nodes=3, hostlist="a,b"), "--local-nodes=3 is for virtual nodes, not for ssh: leave it out"),
        (JobOptions(local_nodes=3, wlm="slurm"), "--local-nodes=3 is for virtual nodes, not for slurm: leave it out"),
        (JobOptions(hostlist="a", wlm="slurm"), "--hostlist and --hostfile are for ssh, not for --wlm=slurm"),
        (JobOptions(wlm="ssh"), "--wlm=ssh needs hosts: name them with --hostlist=A,B or --hostfile=FILE"),
        (JobOptions(wlm="slurm"), "--wlm=slurm needs a Slurm job (SLURM_JOB_ID): run laggard inside salloc"),
    ],
)
def test_an_unavailable_manager_is_named(options: JobOptions, message: str) -> None:
    with pytest.raises(UsageError) as error:
        options.manager({})
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    ("hostlist", "message"),
    [
        ("a,b,a", "host a is named twice: each host is one node"),
        (" , ", "no hosts are named: give --hostlist=A,B or a --hostfile with one host per line"),
        ("a,-oProxyCommand=reboot", "'-oProxyCommand=reboot' is not a valid host name"),
        (
            "me@a",
            "'me@a' is not a valid host name: use letters, digits, dots and dashes; user names",
        ),
    ],
)
def test_a_wrong_list_of_hosts_is_named(hostlist: str, message: str) -> None:
    with pytest.raises(UsageError) as error:
        JobOptions(hostlist=hostlist).hosts()
    assert str(error.value).startswith(message)


def test_hosts_are_read_from_a_file_without_comments_and_slots(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("# mine\nnode-1 slots=8\n\nnode-2.site.org  # the big one\n")
    assert JobOptions(hostfile=file).hosts() == ("node-1", "node-2.site.org")
    with pytest.raises(UsageError, match="cannot be combined: leave one out"):
        JobOptions(hostfile=file, hostlist="a").hosts()
    with pytest.raises(UsageError, match=r"cannot be read: .*No such file"):
        JobOptions(hostfile=tmp_path / "missing").hosts()
