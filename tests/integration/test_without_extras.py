"""laggard without its extras: what does not need them works, and what needs one says what to install."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from laggard.system.ports import free_port
from laggard.telemetry.dumps.writing import write_dump
from tests.made_up_job import T0, running_job, series, write_record
from tests.waiting import DEADLINE_S
from tests.without_extras import without_extras

INSTALL = "pip install 'laggard[ray]'"
IMPORT_ALL = """
import importlib, pkgutil, sys
import laggard

names = [module.name for module in pkgutil.walk_packages(laggard.__path__, "laggard.")]
for name in names:
    # the driver is a process of its own, on a Ray cluster; what is in laggard.torch needs PyTorch
    if not name.endswith((".__main__", ".ray.driver", ".ray_train")) and not name.startswith("laggard.torch."):
        importlib.import_module(name)
for name in laggard.__all__:
    getattr(laggard, name)
assert not sys.modules.keys() & {"ray", "matplotlib"}
print(len(names))
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "site").mkdir()
    return {**without_extras(tmp_path / "site"), "HOME": str(tmp_path), "LAGGARD_RUNTIME_ROOT": str(tmp_path)}


def laggard(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "laggard", *arguments],
        env=environment,
        cwd=environment["HOME"],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )


@pytest.mark.parametrize("extra", ["ray", "matplotlib"])
def test_extras_cannot_be_imported_here(environment: dict[str, str], extra: str) -> None:
    done = subprocess.run([sys.executable, "-c", f"import {extra}"], env=environment, capture_output=True, text=True)
    assert f"ModuleNotFoundError: No module named {extra!r}" in done.stderr


def test_every_module_that_needs_no_extra_is_imported(environment: dict[str, str]) -> None:
    done = subprocess.run([sys.executable, "-c", IMPORT_ALL], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 50


@pytest.mark.parametrize(
    ("arguments", "variables", "remedy"),
    [
        (["--local-nodes=2", "true"], {}, f"{INSTALL}, or run the program on each node with --per-node"),
        (["--wlm=ray", "--per-node", "true"], {"RAY_ADDRESS": "127.0.0.1:1"}, INSTALL),
    ],
)
def test_a_job_that_needs_ray_says_what_to_install(
    environment: dict[str, str], arguments: list[str], variables: dict[str, str], remedy: str
) -> None:
    done = laggard({**environment, **variables}, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"laggard: Ray is not installed: {remedy}\n"


def test_on_one_node_a_program_runs_without_ray(environment: dict[str, str]) -> None:
    done = laggard(environment, "--no-report", "sh", "-c", "echo hi")
    assert (done.returncode, done.stdout) == (0, "[node1] hi\n"), done.stderr
    assert done.stderr.startswith("laggard: Ray is not installed, so the program runs as with --per-node\n")


def test_a_copy_on_every_node_runs_with_a_detector_and_telemetry(environment: dict[str, str]) -> None:
    options = ("--local-nodes=2", "--virtual-gpus=1", "--telemetry-level=3", "--detect=slow-gpu", "--resilient")
    done = laggard(environment, *options, "--per-node", "sh", "-c", "echo rank $NODE_RANK")
    assert done.returncode == 0, done.stderr
    assert sorted(line for line in done.stdout.splitlines() if "rank" in line) == ["[node1] rank 0", "[node2] rank 1"]


def test_a_collector_in_a_program_says_what_to_install(environment: dict[str, str], tmp_path: Path) -> None:
    """Its job has a Ray cluster, and Ray is missing in the environment that the program runs in."""
    (tmp_path / "program.py").write_text(
        "import os\n"
        "os.environ['RAY_ADDRESS'] = '127.0.0.1:1'\n"
        "from laggard import SlowGPUDetector\n"
        "with SlowGPUDetector():\n"
        "    pass\n"
    )
    done = laggard(environment, "--no-report", "--virtual-gpus=1", "--per-node", "program.py")
    assert done.returncode == 1, done.stderr
    assert f"RayMissingError: Ray is not installed: {INSTALL}\n" in done.stderr + done.stdout


def test_jobs_are_shown_and_devices_are_checked(environment: dict[str, str], tmp_path: Path) -> None:
    write_record(tmp_path / "record")
    with running_job(tmp_path, name="train", job_id="a1b2c3d4"):
        for command, words in {
            "status": "train-a1b2c3d4",
            "top --help": "laggard top",
            "report record": "report.html",
            "grafana boards": "",
        }.items():
            done = laggard(environment, *command.split())
            assert done.returncode == 0, (command, done.stderr)
            assert words in done.stdout + done.stderr, command
    page = (tmp_path / "record" / "report.html").read_text()
    assert "excluded: node2" in page
    assert "matplotlib" not in page.lower()


def test_the_doctor_checks_devices(environment: dict[str, str]) -> None:
    """What it finds depends on how busy this machine is, so only the entry of each device is checked."""
    done = laggard(environment, "doctor", "--json", "--virtual-gpus=1", "--past", "past.json")
    assert len(json.loads(done.stdout)["devices"]) == 1, done.stdout + done.stderr


def test_a_dump_is_served(environment: dict[str, str], tmp_path: Path) -> None:
    write_dump(str(tmp_path), "node1", T0, series())
    command = [sys.executable, "-m", "laggard", "replay", f"--port={free_port('127.0.0.1')}", str(tmp_path)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        lines = [server.stdout.readline(), server.stdout.readline()]
        server.send_signal(signal.SIGINT)
    assert lines[1].startswith("telemetry at"), lines
