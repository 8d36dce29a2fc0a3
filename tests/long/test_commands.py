"""Every command in the documents is run, as printed or with its placeholders filled in: here, by another test that
takes it from the document, or by CI. The few exceptions have their reasons in ``NOT_HERE``.
"""

from __future__ import annotations

import gzip
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from xml.etree import ElementTree

import pytest

import laggard
from laggard.kvstore.client.fence import begin_launch
from laggard.kvstore.server.process import BACKUP, StateServer
from laggard.kvstore.state.mapping import State
from laggard.resilience.allocation.slurm import Srun
from laggard.resilience.command.remote_check import NO_GPU
from laggard.telemetry.dumps.writing import write_dump
from tests.integration.jobs import ask
from tests.integration.test_history_server import SITE_NODES
from tests.integration.test_views import Terminal
from tests.long.test_examples import sessions
from tests.long.test_site_job import SITE_JOB
from tests.made_up_job import T0, running_job, series, write_record
from tests.printed import (
    ACCELERATE_JOB,
    ARRAY,
    ATTACHED_JOB,
    BATCH_SCRIPT,
    DEEPSPEED_JOB,
    DEMO,
    DOCTORS_ROUNDS,
    DOWN,
    HETEROGENEOUS,
    HOST_FILE_JOB,
    IDLE_JOB,
    INSIDE_SRUN,
    INTERACTIVE,
    LINK_JOB,
    MAIN_JOB,
    MANIFEST,
    MPI_JOB,
    PORTS_JOB,
    PROLOG,
    RAY_TRAIN_JOB,
    RAYS_EXAMPLE_JOB,
    RECORDING,
    REQUEUE,
    RESUME_JOBS,
    RESUME_NODE,
    SECTIONS_JOB,
    SHELL,
    SSH_CHECK,
    SSH_JOB,
    START_NOW,
    STATUS_STEP,
    SUBMIT,
    TOPOLOGY,
    TORCHRUN_JOB,
    WATCHED_JOB,
    commands_in,
    printed_benchmarks,
    printed_commands,
)
from tests.waiting import wait_until

PACKAGES = ("kvstore", "telemetry", "collectors", "detectors", "resilience")
ROOT = Path(__file__).parents[2]
DEADLINE_S = 240.0

FIRST_JOB = "laggard --local-nodes=2 --virtual-gpus=2 --resilient --detect slow-gpu first.py"
ON_EVERY_NODE = "laggard --per-node sh -c 'echo node $NODE_RANK of $NNODES'"
JOB = "slow_gpu-rn_u9t7_"
RECORD = f"home/.local/state/laggard/{JOB}"
LOOKING = {
    "laggard status": JOB,
    "laggard status slow_gpu": JOB,
    f"laggard status {JOB}": JOB,
    "laggard status --json": f'"job": "{JOB}"',
    "laggard explain": f"{JOB}: running for",
    f"laggard explain {JOB}": f"{JOB}: running for",
    "laggard report slow_gpu": f"{RECORD}/report.html",
    "laggard report state/": "state/reports/slow_gpu-later/report.html",
}
"""Commands that show a running job or its record, and what their output must contain."""
REPLAYED = {"laggard replay --port=5254 dumps": 6, f"laggard replay --port=5254 {RECORD}": 6}
"""Commands that serve dumps, and the number of devices in them."""
COMPLETIONS = {
    'eval "$(_LAGGARD_COMPLETE=bash_source laggard)"': "bash",
    'eval "$(_LAGGARD_COMPLETE=zsh_source laggard)"': "zsh",
    "_LAGGARD_COMPLETE=fish_source laggard | source": "fish",
}
PICTURE = "python -m benchmarks.detection_picture docs/images/detection.png"
WITH_RAY = "pip install '.[ray,plot]'"
PIP = {
    WITH_RAY,
    "pip install .",
    "pip install '.[cuda12]'",
    "pip install '.[torch]'",
    "pip install '.[examples,torch]'",
}
UNPACKED = "zcat node1-20260131T120000.csv.gz > node1.csv"
ENVIRONMENT = ["python3 -m venv .venv", "source .venv/bin/activate"]
HERE = {
    *LOOKING,
    *COMPLETIONS,
    *ENVIRONMENT,
    *PIP,
    FIRST_JOB,
    ON_EVERY_NODE,
    PICTURE,
    RECORDING,
    UNPACKED,
    "laggard doctor",
    "laggard doctor --virtual-gpus=2",
    "laggard grafana provisioning-dir",
    "laggard report",
    "laggard run --help",
    "laggard top",
    "poe",
    "poe reference",
    "python -m benchmarks",
}

# Patterns, and parts of commands within sentences, each with a command that fills in its placeholders, which is run
# here or by another test.
TRUE, RUN_TRUE = "laggard true", "laggard run --per-node true"
REPORT_OF_A_FOLDER = f"laggard report {RECORD}"
SRUN = shlex.join(Srun().command("node1", ["python3", "-m", "laggard.resilience.agent.agent"]))
WITH_TOKEN = "laggard grafana with-token --token-file laggard-token/1/telemetry-token"
RECORDED = "laggard doctor --node-history nodes --virtual-gpus=2"
REMEMBERED = "laggard nodes --node-history nodes"
REPAIR, TO_BACKUP = "laggard repair-state damaged", "laggard repair-state --backup damaged"
FILLED = {
    "laggard --per-node": ON_EVERY_NODE,
    "laggard --per-device": RESUME_JOBS["loop"],
    "laggard --per-node PROGRAM": ON_EVERY_NODE,
    "laggard --per-node torchrun ...": TORCHRUN_JOB,
    "laggard PROGRAM": TRUE,
    "laggard [OPTIONS] PROGRAM": FIRST_JOB,
    "laggard grafana": "laggard grafana provisioning-dir",
    "laggard kubernetes": MANIFEST,
    "laggard grafana DIR": "laggard grafana provisioning-dir",
    "laggard grafana DIR --token-file /tmp/laggard-.../1/telemetry-token": WITH_TOKEN,
    "laggard grafana DIR --token-file FILE": WITH_TOKEN,
    "laggard doctor --node-history DIR": RECORDED,
    "laggard nodes": REMEMBERED,
    "laggard nodes --node-history DIR": REMEMBERED,
    "laggard repair-state": REPAIR,
    "laggard repair-state DIR": REPAIR,
    "laggard repair-state --backup DIR": TO_BACKUP,
    "laggard replay": "laggard replay --port=5254 dumps",
    "laggard replay DIRECTORY": "laggard replay --port=5254 dumps",
    "laggard replay FOLDER": f"laggard replay --port=5254 {RECORD}",
    "laggard report FOLDER": REPORT_OF_A_FOLDER,
    "laggard run": RUN_TRUE,
    "python3 -m venv": "python3 -m venv .venv",
    # What laggard runs on each node of a Slurm job: clusters/test_slurm.py.
    "srun --overlap --ntasks-per-node=1 --no-kill --kill-on-bad-exit=0 --wait=0 --cpu-bind=none": SRUN,
}

FILLED_HERE = {TRUE, RUN_TRUE, REPORT_OF_A_FOLDER, WITH_TOKEN, SRUN, RECORDED, REMEMBERED, REPAIR, TO_BACKUP, *REPLAYED}

# Why a command is not run as printed.
NOT_HERE = {
    "LAGGARD_NOTIFY=https://hooks.slack.com/services/... laggard --resilient train.py": "integration/test_job.py has "
    "a server of its own",
    "export LAGGARD_NODE_HISTORY=/shared/laggard/nodes": "integration/test_job.py gives the option",
    "curl localhost:4242/health": "curl's own",
    "pip install 'dragonhpc[telemetry]'": "from the package index alone, and no dependency of the tests",
    "pip install torch --index-url https://download.pytorch.org/whl/cpu": "from PyTorch's own index",
    "dragon  --telemetry-level=3 --nodes=2 --idle=1 --resilient --exhaust-resources program.py": "Dragon's own",
    "dragon PROG ARGS": "Dragon's own",
    "git push origin v0.1.0": "publishes",
    "git tag v0.1.0": "publishes",
    "python -m build": "long/test_distributions.py builds in a folder of its own",
    "ray drain-node": "Ray's own; tests/long/test_attached.py drains a node by what it calls",
    "twine upload dist/laggard-0.1.0*": "publishes",
    "torchrun --max-restarts": "torchrun's own; `python -m benchmarks restart` runs it",
}


def run_by_other_tests() -> set[str]:
    """Return the commands that other tests run, each taken from that test."""
    by_slurm = {*INTERACTIVE, *commands_in(f"```bash\n{BATCH_SCRIPT}```")}
    by_slurm |= {DOWN, IDLE_JOB, *PROLOG, REQUEUE, STATUS_STEP, SUBMIT}
    by_slurm |= {ARRAY, HETEROGENEOUS, INSIDE_SRUN, RESUME_NODE, SHELL, TOPOLOGY, START_NOW}
    in_console = {printed for printed in printed_commands() if tuple(shlex.split(printed)) in _words_of_examples()}
    rest = {
        ACCELERATE_JOB,
        ATTACHED_JOB,
        DEEPSPEED_JOB,
        DEMO,
        HOST_FILE_JOB,
        LINK_JOB,
        *RESUME_JOBS.values(),
        *DOCTORS_ROUNDS.values(),
        MAIN_JOB,
        MANIFEST,
        MPI_JOB,
        PORTS_JOB,
        RAYS_EXAMPLE_JOB,
        RAY_TRAIN_JOB,
        SSH_CHECK,
        SITE_JOB,
        SITE_NODES,
        SSH_JOB,
        TORCHRUN_JOB,
        WATCHED_JOB,
        SECTIONS_JOB,
        "poe site",  # integration/test_site.py
    }
    return by_slurm | in_console | rest


def run_by_ci() -> set[str]:
    """Return the commands that CI runs, and parts of those: CI runs all tests, so also those of each file."""
    printed = printed_commands()
    tasks = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["poe"]["tasks"]
    given = commands_in(f"```sh\n{(ROOT / '.ci' / 'run').read_text()}```")
    of_readme = re.findall(r"^    python3 .*$", (ROOT / "README.md").read_text(), re.MULTILINE)
    lines = {line.partition(" --begin-within=")[0] for line in [*given, *commands_in("\n".join(of_readme))]} & printed
    steps = {f"poe {step}" for line in lines if line == "poe test" for step in tasks["test"]["sequence"]}
    tests = {each: each for each in printed} | {f"poe {name}": task.get("cmd", "") for name, task in tasks.items()}
    parts = {each for each, command in tests.items() if _runs_tests(command)} if "poe test-wheel" in steps else set()
    return (lines | steps | parts) & printed


def _runs_tests(command: str) -> bool:
    """Whether a command runs pytest on some of the tests, by path."""
    program, *words = shlex.split(command) or [""]
    paths = [word for word in words if not word.startswith("-")]
    return program == "pytest" and all(path.startswith("tests/") and (ROOT / path).exists() for path in paths)


def _words_of_examples() -> set[tuple[str, ...]]:
    return {printed.command for session in sessions() for printed in session}


def test_every_command_of_the_documents_is_run() -> None:
    printed = printed_commands() - printed_benchmarks()  # which tests/long/test_benchmarks.py runs
    run = HERE | run_by_other_tests() | run_by_ci()
    assert printed - run - FILLED.keys() - NOT_HERE.keys() == set()
    assert (HERE | FILLED.keys() | NOT_HERE.keys()) - printed == set()
    assert run & NOT_HERE.keys() == set()
    assert run & FILLED.keys() == set()


@pytest.mark.parametrize(("form", "filled"), FILLED.items())
def test_a_pattern_is_run_with_its_placeholders_filled_in(form: str, filled: str) -> None:
    words = [word for word in form.split() if not re.search(r"^\[?[A-Z]{3,}|\.\.\.", word)]
    assert set(words) - set(filled.split()) == set()
    assert len(filled.split()) > len(words)
    assert filled in HERE | run_by_other_tests() | FILLED_HERE


def test_commands_are_found_in_all_notations_of_the_documents() -> None:
    text = "\n".join(
        [
            "Say `laggard one --a` or `poe`, `python two`.",
            "",
            "    laggard three  # a comment",
            "    VARIABLE=x laggard four && .venv/bin/poe five || scontrol six",
            "    00:00.1 launch    0 on node1",
            "      laggard      0.22 us",
            "    laggard: no such thing",
            "",
            "```sh\n# a comment\nseven --a\nexec laggard eight\n```",
            "```console\n$ nine\noutput\n```",
            "```\npython -m ten\noutput\n```",
            "```python\nlaggard = 1\n```",
        ]
    )
    assert set(commands_in(text)) == {
        "laggard one --a",
        "python two",
        "laggard three",
        "VARIABLE=x laggard four",
        "poe five",
        "scontrol six",
        "seven --a",
        "laggard eight",
        "nine",
        "python -m ten",
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A newcomer's working directory: what a clone holds, and the guide's program."""
    folder = tmp_path_factory.mktemp("newcomer")
    for name in ("examples", "benchmarks", "pyproject.toml"):
        (folder / name).symlink_to(ROOT / name)
    guide = (ROOT / "docs" / "guides" / "first-failure.md").read_text()
    (program,) = re.findall(r"```python\n(.*?)```", guide, re.DOTALL)
    (folder / "first.py").write_text(program)
    return folder


@pytest.fixture(autouse=True)
def _users_environment(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's own home and PATH; Python finds the packages under test."""
    monkeypatch.setenv("HOME", str(folder / "home"))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    monkeypatch.chdir(folder)


def run(command: str, shell: str = "bash") -> subprocess.CompletedProcess[str]:
    """Run a command in the user's shell."""
    return subprocess.run([shell, "-c", command], capture_output=True, text=True, timeout=DEADLINE_S)


def output_of(command: str) -> str:
    """Run a command that must succeed, and return its standard output."""
    done = run(command)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_recording_of_the_demonstration_is_a_small_picture_that_moves_up_to_its_last_lines(folder: Path) -> None:
    (folder / "docs" / "images").mkdir(parents=True, exist_ok=True)
    output_of(RECORDING)
    picture = folder / "docs" / "images" / "demo.svg"
    assert picture.stat().st_size < 1_000_000
    drawn = "".join(ElementTree.parse(picture).getroot().itertext())  # noqa: S314 - it is our own
    assert "$ laggard demo" in drawn
    assert "no work lost" in drawn
    assert drawn.count("translateY") > 20
    assert str(folder) not in drawn


def test_a_newcomers_first_program_dies_and_resumes_from_its_last_step(folder: Path) -> None:
    done = run(FIRST_JOB)

    assert done.returncode == 0, done.stderr
    assert re.search(r"^launch 1: step 40, total \d+\.\d$", done.stdout, re.MULTILINE), done.stdout
    assert "relaunch  the program on node1 was killed by SIGKILL after" in done.stderr, done.stderr

    page = Path(output_of("laggard report").strip())
    assert page.is_relative_to(folder / "home")
    assert "<svg" in page.read_text() or "data:image/png" in page.read_text()


def test_a_copy_on_every_node_knows_its_rank() -> None:
    assert "node 0 of 1" in output_of(ON_EVERY_NODE)
    assert output_of(RUN_TRUE) == ""


def test_any_program_is_run_on_a_cluster() -> None:
    done = run(TRUE)
    assert done.returncode == 0, done.stderr
    assert "the program ended with exit code 0" in done.stderr


@pytest.fixture
def _job(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A running job with the name that the documents use, and such a job's record and dumps."""
    monkeypatch.setenv("LAGGARD_RUNTIME_ROOT", str(tmp_path))
    write_record(folder / "home/.local/state/laggard" / JOB)
    write_record(folder / "state/reports/slow_gpu-later", samples=False)
    (folder / "dumps").mkdir()
    write_dump(str(folder / "dumps"), "node1", T0, series())
    name, _, job_id = JOB.partition("-")
    with running_job(tmp_path, name=name, job_id=job_id):
        yield


@pytest.mark.usefixtures("_job")
def test_a_job_is_shown_as_the_guide_says() -> None:
    for command, words in LOOKING.items():
        assert words in output_of(command), command
    assert f"{RECORD}/report.html" in output_of(REPORT_OF_A_FOLDER)
    for command, n_devices in REPLAYED.items():
        assert_serves(command, n_devices)

    terminal = Terminal("laggard", "top")
    try:
        terminal.shows(f"(?s){JOB}.*6 devices, by worst.*q quit")
        terminal.press("q")
        assert terminal.left() == (0, True)
    finally:
        terminal.close()


def test_a_damaged_log_is_repaired_by_the_printed_command(folder: Path) -> None:
    with StateServer.start(folder / "damaged", job="job") as server, server.endpoint.connect() as client:
        begin_launch(client, server.endpoint, 0)
        State(client, server.endpoint, 0)["kept"] = 1
        assert server.backup()
        wait_until((folder / "damaged" / BACKUP).exists)
    with next((folder / "damaged").glob("appendonlydir/*.incr.aof")).open("ab") as log:
        log.write(bytes(512))
    assert "512 bytes are left out\nState is as of commit 1 of" in output_of(REPAIR)
    assert "State is as of commit 1: 1 key" in output_of(TO_BACKUP)


def assert_serves(command: str, n_devices: int) -> None:
    """Ask a server of dumps for the devices' probe times, and stop it with Ctrl-C."""
    server = subprocess.Popen(shlex.split(command), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    with server:
        try:
            while not (line := server.stdout.readline()).startswith("telemetry at"):
                assert line, "the server has ended"
            port = int(line.rsplit(":", 1)[1])
            asked = {"start": round(T0), "queries": [{"metric": "gpu-probe-time", "aggregator": "none"}]}
            assert len(ask(port, "/api/query", asked)) == n_devices
            server.send_signal(signal.SIGINT)
            assert server.wait(DEADLINE_S) == 130
        finally:
            server.kill()


@pytest.mark.parametrize(("command", "shell"), COMPLETIONS.items())
def test_the_shell_accepts_the_completion(command: str, shell: str) -> None:
    if shutil.which(shell):
        before = "autoload -U compinit && compinit -u; " if shell == "zsh" else ""
        registered = {"bash": "complete -p laggard", "zsh": "echo $_comps[laggard]", "fish": "complete -c laggard"}[
            shell
        ]
        done = run(f"{before}{command}; {registered}", shell)
        assert "laggard_completion" in done.stdout, done.stderr
    else:  # what the shell would read
        script = re.sub(r'eval "\$\((.*)\)"| \| source', r"\1", command)
        assert "laggard_completion" in output_of(script)


def test_commands_without_a_job_do_what_they_say(folder: Path) -> None:
    assert "devices ok" in output_of("laggard doctor --virtual-gpus=2")
    done = run("CUDA_VISIBLE_DEVICES= laggard doctor")
    assert (done.returncode, done.stderr) == (3, f"laggard: {NO_GPU}\n")
    assert "--local-nodes N" in output_of("laggard run --help")
    assert "repair-state" in output_of("laggard --help")
    assert "Find the slow GPU" in run("python -m laggard").stderr

    (folder / "nodes").mkdir()
    output_of(RECORDED)
    assert output_of(REMEMBERED) == "nothing speaks against any node\n"

    output_of("laggard grafana provisioning-dir")
    assert list((folder / "provisioning-dir").rglob("*.json"))

    token = folder / "laggard-token/1/telemetry-token"
    token.parent.mkdir(parents=True)
    token.write_text("a-token-of-a-job")
    output_of(WITH_TOKEN)
    assert "a-token-of-a-job" in "".join(file.read_text() for file in (folder / "with-token").rglob("*.yaml"))

    listed = run("python -m benchmarks").stderr
    assert [name for name in {command.split()[3] for command in printed_benchmarks()} if name not in listed] == []

    (folder / "docs" / "images").mkdir(parents=True, exist_ok=True)
    output_of(PICTURE)
    assert (folder / "docs" / "images" / "detection.png").stat().st_size > 10_000

    with gzip.open(folder / "node1-20260131T120000.csv.gz", "wt") as dump:
        dump.write("time_s,metric\n")
    output_of(UNPACKED)
    assert (folder / "node1.csv").read_text() == "time_s,metric\n"


@pytest.mark.skipif(find_spec("torch") is None, reason="needs the extra `torch`: laggard.torch is in the reference")
def test_poe_lists_its_tasks_and_makes_the_reference_from_the_docstrings(folder: Path) -> None:
    listed = run("poe").stdout
    assert re.search(r"^ +test +Lint, and all tests but the long ones", listed, re.MULTILINE), listed

    done = run("poe reference")
    assert done.returncode == 0, done.stderr
    assert "Warn" not in done.stderr
    assert "false_alarm_budget" in (folder / "build" / "reference" / "laggard" / "detectors.html").read_text()


def test_the_environment_of_the_readme_can_be_made_and_entered(folder: Path) -> None:
    assert output_of("; ".join([*ENVIRONMENT, "which python"])).strip() == str(folder / ".venv" / "bin" / "python")
    shutil.rmtree(folder / ".venv")


def test_pip_takes_the_clone_with_each_of_its_extras(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without dependencies, which would have to be downloaded; pip would warn of an unknown extra."""
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        (tmp_path / name).symlink_to(ROOT / name)
    (package,) = laggard.__path__  # installed, our packages lie there
    for name in PACKAGES:
        (tmp_path / name).symlink_to(Path(package, name))
    (tmp_path / "src" / "laggard").mkdir(parents=True)
    for path in Path(package).iterdir():
        if path.name not in {*PACKAGES, "__pycache__"}:
            (tmp_path / "src" / "laggard" / path.name).symlink_to(path)
    monkeypatch.chdir(tmp_path)
    offline = "--no-deps --no-index --no-build-isolation --disable-pip-version-check"

    for command in sorted(PIP - {WITH_RAY}):
        done = run(f"{command} {offline} --dry-run")
        assert "Would install laggard-" in done.stdout, done.stderr
        assert "does not provide the extra" not in done.stderr

    output_of(f"{WITH_RAY} {offline} --target site")
    assert output_of("PYTHONPATH=site site/bin/laggard --version").startswith("laggard ")
