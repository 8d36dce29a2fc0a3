"""Every command that the documents print is run: here, by another test, or by whoever has what it needs."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
DEADLINE_S = 240.0

FIRST_JOB = "laggard --local-nodes=2 --virtual-gpus=2 --resilient --detect slow-gpu first.py"
ON_EVERY_NODE = "laggard --per-node sh -c 'echo node $NODE_RANK of $NNODES'"

# What another test runs, and a piece of it by which that is seen.
ELSEWHERE = {
    "laggard --local-nodes=3 --nodes=2 --virtual-gpus=2 --resilient --exhaust-resources examples/slow_gpu.py": (
        "integration/test_slow_gpu.py",
        '"--exhaust-resources"',
    ),
    "laggard --local-nodes=3 --nodes=2 --resilient --per-node torchrun examples/torchrun_ddp.py": (
        "integration/test_torchrun.py",
        '"torchrun"',
    ),
    "laggard status": ("integration/test_views.py", '"status"'),
    "laggard status slow_gpu": ("integration/test_views.py", '"status"'),
    "laggard status slow_gpu-rn_u9t7_": ("integration/test_views.py", '"status"'),
    "laggard report STATE_DIR": ("integration/test_views.py", '"report"'),
    "laggard report slow_gpu": ("integration/test_views.py", '"report"'),
    "laggard report dumps/ -o here": ("integration/test_views.py", '"report"'),
    "poe reference": ("unit/test_guides.py", "reference"),
}
NOT_HERE = {
    "laggard doctor --past /var/lib/laggard/devices.json || scontrol update nodename=$SLURMD_NODENAME state=drain "
    "reason=laggard": "a prolog of Slurm; its first half is run by integration/test_doctor.py",
    "laggard --telemetry-level=3 --nodes=2 --idle=1 --resilient --exhaust-resources program.py": "a program of yours",
    "laggard --nodes=7 --idle=1 --resilient --detect slow-gpu --per-node torchrun --nproc-per-node=gpu train.py": (
        "eight nodes with GPUs"
    ),
}
HERE = {"laggard doctor", "laggard grafana provisioning-dir", "laggard report", FIRST_JOB, ON_EVERY_NODE}
# These guides have tests of their own that take their commands out of them.
WITH_OWN_TESTS = {"slurm.md", "ssh.md", "kubernetes.md"}


def printed_commands() -> set[str]:
    """Return the commands of the documents, without the comments behind them."""
    found = set()
    for document in DOCUMENTS:
        if document.name in WITH_OWN_TESTS or document.parent.name == "benchmarks":
            continue
        for line in re.findall(r"^    ((?:laggard|poe) \S.*)$", document.read_text(), re.MULTILINE):
            found.add(re.sub(r"\s+#.*", "", line).strip())
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a newcomer is: with the program of the guide."""
    folder = tmp_path_factory.mktemp("newcomer")
    guide = (ROOT / "docs" / "guides" / "first-verdict.md").read_text()
    (program,) = re.findall(r"```python\n(.*?)```", guide, re.DOTALL)
    (folder / "first.py").write_text(program)
    return folder


def run(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command as a user's shell does, with a home of its own."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    laggard, *arguments = shlex.split(command)
    program = shutil.which(laggard, path=path)
    if program is None:
        pytest.skip("the command laggard is not installed")
    environ = os.environ | {"HOME": str(folder / "home"), "PATH": path}
    return subprocess.run(
        [program, *arguments], cwd=folder, env=environ, capture_output=True, text=True, timeout=DEADLINE_S
    )


def test_every_command_of_the_documents_is_run_by_somebody() -> None:
    assert printed_commands() - HERE - ELSEWHERE.keys() - NOT_HERE.keys() == set()
    assert (HERE | ELSEWHERE.keys() | NOT_HERE.keys()) - printed_commands() == set()
    for test, piece in ELSEWHERE.values():
        assert piece in (ROOT / "tests" / test).read_text()


def test_a_newcomers_first_program_dies_and_goes_on_from_its_last_step(folder: Path) -> None:
    done = run(FIRST_JOB, folder)

    assert done.returncode == 0, done.stderr
    assert re.search(r"^launch 1: step 40, total \d+\.\d$", done.stdout, re.MULTILINE), done.stdout
    assert "relaunch  the program died by signal 9" in done.stderr, done.stderr

    report = run("laggard report", folder)
    assert report.returncode == 0, report.stderr
    (page,) = (folder / "home").rglob("report.html")
    assert "<svg" in page.read_text() or "data:image/png" in page.read_text()


def test_a_copy_on_every_node_knows_its_rank(folder: Path) -> None:
    done = run(ON_EVERY_NODE, folder)

    assert done.returncode == 0, done.stderr
    assert "node 0 of 1" in done.stdout


def test_the_doctor_and_grafanas_files_need_nothing(folder: Path) -> None:
    assert "devices ok" in run("laggard doctor", folder).stdout

    assert run("laggard grafana provisioning-dir", folder).returncode == 0
    assert list((folder / "provisioning-dir").rglob("*.json"))
