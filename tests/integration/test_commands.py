"""Every command that the documents print is run as it is printed: here, by another test that has its words from the
document or from one list with this one, or by whoever has what it needs.
"""

from __future__ import annotations

import gzip
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.__main__ import BENCHMARKS
from resilience.cli import cli
from resilience.options import JobOptions
from telemetry.dump import write_dump
from tests.integration.clusters.test_slurm import block
from tests.integration.test_examples import sessions
from tests.integration.test_views import Terminal
from tests.made_up_job import T0, running_job, series, write_record
from tests.printed import DOCTORS_ROUNDS, MAIN_JOB, TORCHRUN_JOB, commands_in, printed_benchmarks, printed_commands

ROOT = Path(__file__).parents[2]
DEADLINE_S = 240.0

FIRST_JOB = "laggard --local-nodes=2 --virtual-gpus=2 --resilient --detect slow-gpu first.py"
ON_EVERY_NODE = "laggard --per-node sh -c 'echo node $NODE_RANK of $NNODES'"
AT_ONCE = "laggard --local-nodes=3 --nodes=2 --per-node true"
JOB = "slow_gpu-rn_u9t7_"
LOOKING = {
    "laggard status": JOB,
    "laggard status slow_gpu": JOB,
    f"laggard status {JOB}": JOB,
    "laggard status --json": f'"job": "{JOB}"',
    "laggard report slow_gpu": f"home/.local/state/laggard/{JOB}/report.html",
    "laggard report state/": "state/reports/slow_gpu-later/report.html",
    "laggard report dumps/ -o here": "here/report.html",
}
"""What is looked at in a job that runs and in what it left, and what must come."""
COMPLETIONS = {
    'eval "$(_LAGGARD_COMPLETE=bash_source laggard)"': "bash",
    'eval "$(_LAGGARD_COMPLETE=zsh_source laggard)"': "zsh",
    "_LAGGARD_COMPLETE=fish_source laggard | source": "fish",
}
PICTURE = "python -m benchmarks.detection_picture docs/images/detection.png"
UNPACKED = "zcat node1-20260131T120000.csv.gz > node1.csv"
ENVIRONMENT = ["python3 -m venv .venv", "source .venv/bin/activate"]
HERE = {
    *LOOKING,
    *COMPLETIONS,
    *ENVIRONMENT,
    FIRST_JOB,
    ON_EVERY_NODE,
    AT_ONCE,
    PICTURE,
    UNPACKED,
    "laggard doctor",
    "laggard grafana provisioning-dir",
    "laggard report",
    "laggard run --help",
    "laggard top",
    "poe",
    "poe reference",
    "python -m benchmarks",
}

# Why nobody runs it here. What it asks of laggard, of poe, of pip and of the benchmarks is checked all the same.
FROM_THE_INDEX = "fetches packages from the package index, for half a minute or more"
PROLOG = "a prolog of Slurm's: as root, into /var/lib, about a node that Slurm knows"
NAMED = "a piece of a command, named within a sentence"
TESTS = "runs tests itself; CI runs the same ones"
NOT_HERE = {
    "pip install -q .": FROM_THE_INDEX,
    "pip install '.[cuda12]'": FROM_THE_INDEX,
    "pip install '.[torch]'": FROM_THE_INDEX,
    "pip install '.[examples,torch]'": FROM_THE_INDEX,
    "pip install 'dragonhpc[telemetry]'": FROM_THE_INDEX,
    "laggard doctor --past /var/lib/laggard/devices.json": PROLOG,
    "scontrol update nodename=$SLURMD_NODENAME state=drain reason=laggard": PROLOG,
    "dragon  --telemetry-level=3 --nodes=2 --idle=1 --resilient --exhaust-resources program.py": "Dragon's own",
    "laggard --telemetry-level=3 --nodes=2 --idle=1 --resilient --exhaust-resources program.py": (
        "an allocation of three nodes, and a program of the reader's"
    ),
    "laggard --nodes=7 --idle=1 --resilient --detect slow-gpu --per-node torchrun --nproc-per-node=gpu train.py": (
        "eight nodes with GPUs, and a program of the reader's"
    ),
    "laggard --hostlist=node1,node2,node3 --nodes=2 --resilient --exhaust-resources slow_gpu.py": (
        "three hosts of these names; integration/clusters/test_ssh.py runs other jobs on hosts of its own"
    ),
    "RAY_ADDRESS=10.0.0.1:6379 laggard --wlm ray --nodes 7 --resilient train.py": (
        "a Ray cluster of seven nodes; integration/test_attached.py runs other jobs on one of three"
    ),
    "ssh -o BatchMode=yes node2 true": "a host of this name",
    "srun --jobid=ID --overlap laggard status": "a job of Slurm's, by its id",
    "sbatch job.sh": "a cluster of Slurm's; integration/clusters/test_slurm.py submits that script, and waits for it",
    "poe quick": TESTS,
    "poe test-wheel": TESTS,
    "pytest -s tests/integration/test_cut_network.py": TESTS,
    "dragon PROG ARGS": NAMED,
    "kill -9": NAMED,
    "python3 -m venv": NAMED,
    "ray drain-node": NAMED,
    "salloc --gpus-per-node=8": NAMED,
    "scancel --signal": NAMED,
    "scontrol requeue": NAMED,
    "scontrol update nodename=... state=down": NAMED,
    "srun --overlap --nodes=1 --ntasks=1 --no-kill --kill-on-bad-exit=0 --cpu-bind=none": NAMED,
}


def run_by_other_tests() -> set[str]:
    """Return the commands that other tests run, each from where that test has it."""
    by_slurm = {*commands_in(f"```sh\n{block('sh')}```"), *commands_in(f"```bash\n{block('bash')}```")}
    by_ci = {*commands_in(f"```sh\n{(ROOT / '.ci' / 'run').read_text()}```")}
    in_console = {printed for printed in printed_commands() if tuple(shlex.split(printed)) in _words_of_examples()}
    return (
        by_slurm
        | (by_ci & {"pip install -q -e '.[dev]'", "poe test"})
        | in_console
        | {MAIN_JOB, TORCHRUN_JOB, *DOCTORS_ROUNDS.values()}
    )


def _words_of_examples() -> set[tuple[str, ...]]:
    return {printed.command for session in sessions() for printed in session}


def is_form(command: str) -> bool:
    """Whether a command of laggard's has a place to fill in, or names an option or a sub-command and no more."""
    laggard, *words = command.split()
    named = len(words) == 1 and (words[0].startswith("-") or words[0] in cli.commands)
    return laggard == "laggard" and (named or bool(re.search(r" \[?[A-Z]{3,}\b|\.\.\.", command)))


def commands_of_ours() -> list[str]:
    """Return laggard's commands that are forms, or are not run here."""
    forms = {command for command in printed_commands() if is_form(command)}
    return sorted(command for command in forms | NOT_HERE.keys() if re.search(r"(^| )laggard ", command))


def test_every_command_of_the_documents_is_accounted_for() -> None:
    printed = printed_commands() - printed_benchmarks()  # which test_benchmarks.py runs
    forms = {command for command in printed if is_form(command)} - HERE
    accounted = HERE | NOT_HERE.keys() | run_by_other_tests() | forms
    assert printed - accounted == set()
    assert (HERE | NOT_HERE.keys() | {MAIN_JOB, TORCHRUN_JOB}) - printed == set()
    assert HERE & NOT_HERE.keys() == set()
    assert run_by_other_tests() & NOT_HERE.keys() == set()


def test_commands_are_found_in_every_form_that_documents_have() -> None:
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


@pytest.mark.parametrize("command", commands_of_ours())
def test_laggard_takes_the_options_of_what_is_not_run(command: str) -> None:
    words = shlex.split(command[command.index("laggard ") :].replace("laggard [OPTIONS] PROGRAM", "laggard PROGRAM"))[
        1:
    ]
    name = words.pop(0) if words[0] in cli.commands else "run"
    known = {option for parameter in cli.commands[name].params for option in parameter.opts}
    program = next((i for i, word in enumerate(words) if not word.startswith("-")), len(words)) if name == "run" else -1
    options = [word.partition("=")[0] for word in words[: program if program >= 0 else None] if word.startswith("-")]
    assert set(options) - known == set()
    if name == "run" and command in NOT_HERE:
        given = cli.commands["run"].make_context("laggard", words).params
        nodes = (given["nodes"] or 1) + (given["idle"] or 0)
        taken = JobOptions(**{key: value for key, value in given.items() if key not in {"program", "arguments"}})
        assert taken.settings(nodes).nodes == given["nodes"]


def test_what_pip_and_poe_are_asked_for_is_there() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    for command in printed_commands():
        if extras := re.fullmatch(r"pip install .*'\.\[(.*)\]'", command):
            assert set(extras[1].split(",")) <= project["project"]["optional-dependencies"].keys()
        if task := re.fullmatch(r"poe ([\w-]+)", command):
            assert task[1] in project["tool"]["poe"]["tasks"]
        if path := re.fullmatch(r"pytest (?:-\w )*(\S+)", command):
            assert (ROOT / path[1]).exists()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a newcomer is: in what a clone holds, with the program of the guide."""
    folder = tmp_path_factory.mktemp("newcomer")
    for name in ("examples", "benchmarks", "pyproject.toml"):
        (folder / name).symlink_to(ROOT / name)
    guide = (ROOT / "docs" / "guides" / "first-verdict.md").read_text()
    (program,) = re.findall(r"```python\n(.*?)```", guide, re.DOTALL)
    (folder / "first.py").write_text(program)
    return folder


@pytest.fixture(autouse=True)
def _users_environment(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A home and a PATH of the user's own; Python finds the packages that are tested."""
    monkeypatch.setenv("HOME", str(folder / "home"))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    monkeypatch.chdir(folder)


def run(command: str, shell: str = "bash") -> subprocess.CompletedProcess[str]:
    """Run a command in the user's shell."""
    return subprocess.run([shell, "-c", command], capture_output=True, text=True, timeout=DEADLINE_S)


def output_of(command: str) -> str:
    """Run a command that must end well, and return what it wrote on standard output."""
    done = run(command)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_newcomers_first_program_dies_and_goes_on_from_its_last_step(folder: Path) -> None:
    done = run(FIRST_JOB)

    assert done.returncode == 0, done.stderr
    assert re.search(r"^launch 1: step 40, total \d+\.\d$", done.stdout, re.MULTILINE), done.stdout
    assert "relaunch  the program died by signal 9" in done.stderr, done.stderr

    page = Path(output_of("laggard report").strip())
    assert page.is_relative_to(folder / "home")
    assert "<svg" in page.read_text() or "data:image/png" in page.read_text()


def test_a_copy_on_every_node_knows_its_rank() -> None:
    assert "node 0 of 1" in output_of(ON_EVERY_NODE)
    assert output_of(AT_ONCE) == ""


@pytest.fixture
def _job(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A job of the documents' name that runs, with the record and the dumps of such a one."""
    monkeypatch.setenv("LAGGARD_RUNTIME_ROOT", str(tmp_path))
    write_record(folder / "home/.local/state/laggard" / JOB)
    write_record(folder / "state/reports/slow_gpu-later", samples=False)
    (folder / "dumps").mkdir()
    write_dump(str(folder / "dumps"), "node1", T0, series())
    name, _, job_id = JOB.partition("-")
    with running_job(tmp_path, name=name, job_id=job_id):
        yield


@pytest.mark.usefixtures("_job")
def test_a_job_is_looked_at_as_the_guide_says() -> None:
    for command, words in LOOKING.items():
        assert words in output_of(command), command

    terminal = Terminal("laggard", "top")
    try:
        terminal.shows(f"(?s){JOB}.*devices 1 to 6 of 6.*q quit")
        terminal.press("q")
        assert terminal.left() == (0, True)
    finally:
        terminal.close()


@pytest.mark.parametrize(("command", "shell"), COMPLETIONS.items())
def test_the_shell_takes_the_completion(command: str, shell: str) -> None:
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


def test_what_needs_nothing_does_what_it_says(folder: Path) -> None:
    assert "devices ok" in output_of("laggard doctor")
    assert "--local-nodes N" in output_of("laggard run --help")

    output_of("laggard grafana provisioning-dir")
    assert list((folder / "provisioning-dir").rglob("*.json"))

    listed = run("python -m benchmarks").stderr
    assert [name for name in BENCHMARKS if name not in listed] == []

    (folder / "docs" / "images").mkdir(parents=True)
    output_of(PICTURE)
    assert (folder / "docs" / "images" / "detection.png").stat().st_size > 10_000

    with gzip.open(folder / "node1-20260131T120000.csv.gz", "wt") as dump:
        dump.write("time_s,metric\n")
    output_of(UNPACKED)
    assert (folder / "node1.csv").read_text() == "time_s,metric\n"


def test_poe_lists_its_tasks_and_makes_the_reference_from_the_docstrings(folder: Path) -> None:
    listed = run("poe").stdout
    assert re.search(r"^ +test +Everything that CI runs", listed, re.MULTILINE), listed

    done = run("poe reference")
    assert done.returncode == 0, done.stderr
    assert "Warn" not in done.stderr
    assert "false_alarm_budget" in (folder / "build" / "reference" / "detectors.html").read_text()


def test_the_environment_of_the_readme_can_be_made_and_entered(folder: Path) -> None:
    assert output_of("; ".join([*ENVIRONMENT, "which python"])).strip() == str(folder / ".venv" / "bin" / "python")
    shutil.rmtree(folder / ".venv")
