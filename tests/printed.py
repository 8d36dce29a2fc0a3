"""The commands that the documents print, in every form in which they do."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

__all__ = [
    "ACCELERATE_JOB",
    "ARRAY",
    "ATTACHED_JOB",
    "BATCH_SCRIPT",
    "DEEPSPEED_JOB",
    "DEMO",
    "DOCTORS_ROUNDS",
    "DOWN",
    "HETEROGENEOUS",
    "HOST_FILE",
    "HOST_FILE_JOB",
    "IDLE_JOB",
    "INSIDE_SRUN",
    "INTERACTIVE",
    "LINK_JOB",
    "MAIN_JOB",
    "MPI_JOB",
    "PORTS_JOB",
    "PROLOG",
    "RAYS_EXAMPLE_JOB",
    "RAY_DATA_LINES",
    "RAY_TRAIN_JOB",
    "RAY_TRAIN_LINES",
    "RECORDING",
    "REQUEUE",
    "RESUME_JOBS",
    "RESUME_NODE",
    "SECTIONS_JOB",
    "SHELL",
    "SSH_CHECK",
    "SSH_JOB",
    "START_NOW",
    "STATUS_STEP",
    "SUBMIT",
    "TOPOLOGY",
    "TORCHRUN_JOB",
    "WATCHED_JOB",
    "commands_in",
    "printed_benchmarks",
    "printed_commands",
]

ROOT = Path(__file__).parents[1]
# What a line of an indented block, or code within a sentence, begins with if it is a command, behind variables. In
# blocks that are marked as a shell's every line is one.
_COMMAND = re.compile(
    r"""
    (\w+=\S+\ )*
    ((\.venv/bin/|\./)\S+
    |apt|apt-get|cat|cd|chrt|conda|cp|curl|docker|dragon|eval|export|git|grafana-server|helm|jupyter|kill|kubectl
    |laggard|lint-imports|mkdir|mpirun|mv|nvidia-smi|pip3?|poe|prometheus|pytest|python3?|ray|redis-cli|rm|ruff|sacct|salloc
    |sbatch|scancel|scontrol|scp|sinfo|source|squeue|srun|ssh|sudo|systemctl|tar|torchrun|twine|uv|valkey-cli|wget|zcat
    )(\ |$)
    """,
    re.VERBOSE,
)
# The folder of an environment's programs is on the PATH once it is active: with it and without it is the same command.
_ENVIRONMENT = ".venv/bin/"
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_INDENTED = re.compile(r"^    (\S.*)$", re.MULTILINE)
_INLINE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
_COMMENT = re.compile(r"\s+#\s.*")


def printed_commands() -> set[str]:
    """Return the commands of all documents, without prompts and the comments behind them; joined ones apart."""
    documents = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")]
    return {command for document in documents for command in commands_in(document.read_text(encoding="utf-8"))}


def printed_benchmarks() -> set[str]:
    """Return those that run a benchmark."""
    return {command for command in printed_commands() if command.startswith("python -m benchmarks ")}


def commands_in(text: str) -> Iterator[str]:
    """Yield the commands of a document."""
    for line in _lines(text):
        for part in re.split(r" (?:&&|\|\|) ", _COMMENT.sub("", line)):
            yield part.removeprefix("exec ").removeprefix(_ENVIRONMENT).strip()


def _lines(text: str) -> Iterator[str]:
    for language, block in _BLOCK.findall(text):
        lines = block.splitlines()
        if language in {"sh", "bash"}:
            yield from (line for line in lines if line and not line.startswith("#"))
        elif language in {"console", "text"}:
            yield from (line.removeprefix("$ ") for line in lines if line.startswith("$ "))
        elif not language:
            yield from (line for line in lines if _COMMAND.match(line))
    rest = _BLOCK.sub("", text)
    yield from (line for line in _INDENTED.findall(rest) if _COMMAND.match(line))
    yield from (code for code in _INLINE.findall(rest) if " " in code and _COMMAND.match(code))


def _only(document: str, pattern: str) -> str:
    """Return the one command of a document that contains a pattern."""
    text = (ROOT / document).read_text(encoding="utf-8")
    (found,) = {command for command in commands_in(text) if re.search(pattern, command)}
    return found


def _blocks(document: str, language: str) -> list[str]:
    """Return the blocks of a document that are in a language."""
    return [code for each, code in _BLOCK.findall((ROOT / document).read_text("utf-8")) if each == language]


MAIN_JOB = _only("README.md", r"^laggard .*examples/slow_gpu\.py")
"""The README's first command, less its installation; ``tests/long/test_slow_gpu.py`` runs it."""
DEMO = _only("README.md", r"^laggard demo")
"""``tests/integration/test_demo.py`` runs it."""
RECORDING = _only("docs/benchmarks.md", r"benchmarks\.recording")
SECTIONS_JOB = _only("docs/guides/programs.md", r"--detect sections --per-node torchrun")
WATCHED_JOB = _only("docs/guides/programs.md", r"--detect slow-gpu --per-node torchrun")
TORCHRUN_JOB = _only("examples/README.md", r"torchrun examples/torchrun_ddp\.py")
"""``tests/long/test_torchrun.py`` runs it."""
LINK_JOB = _only("docs/links.md", r"^laggard .*--detect slow-link")
"""``tests/clusters/test_link_wires.py`` runs it."""
ACCELERATE_JOB = _only("docs/guides/programs.md", r"accelerate launch")
DEEPSPEED_JOB = _only("docs/guides/programs.md", r"deepspeed --no_ssh")
"""``tests/long/test_launchers.py`` runs them."""
HOST_FILE_JOB = _only("docs/guides/programs.md", r"cat .LAGGARD_HOSTFILE")
"""``tests/integration/test_per_device.py`` runs it."""
RESUME_JOBS = {
    **{
        name: _only("docs/guides/pytorch.md", rf"^laggard .*examples/resume_{name}\.py --(fail|kill)-at")
        for name in ("loop", "lightning", "trainer")
    },
    "large": _only("docs/guides/pytorch.md", r"^laggard .*--checkpoint-dir="),
}
"""``tests/long/test_resume.py`` runs them."""
DOCTORS_ROUNDS = {
    "slurm": _only("docs/probes.md", r"--all-nodes$"),
    "ssh": _only("docs/probes.md", r"^laggard doctor --hostlist="),
}
"""``tests/clusters`` run them."""
ATTACHED_JOB = _only("docs/guides/kubernetes.md", r"^RAY_ADDRESS=")
"""``tests/long/test_attached.py`` runs it, at a cluster of its own with fewer nodes."""
RAY_TRAIN_JOB = _only("docs/guides/kubernetes.md", r"examples/ray_libraries/train\.py")
RAYS_EXAMPLE_JOB = _only("docs/guides/kubernetes.md", r"-m ray\.train\.examples")
RAY_DATA_LINES, RAY_TRAIN_LINES = _blocks("docs/guides/kubernetes.md", "python")
"""``tests/long/test_ray_libraries.py`` runs them."""
(_interactive,) = _blocks("docs/guides/slurm.md", "sh")
INTERACTIVE = _interactive.splitlines()
(BATCH_SCRIPT,) = _blocks("docs/guides/slurm.md", "bash")
(HOST_FILE,) = _blocks("docs/guides/ssh.md", "text")
SSH_CHECK = _only("docs/guides/ssh.md", r"^ssh ")
SSH_JOB = _only("docs/guides/ssh.md", r"^laggard --hostlist=")
"""``tests/clusters/test_ssh.py`` runs them."""
PORTS_JOB = _only("docs/guides/operator.md", r"^laggard --port-range=")
"""``tests/clusters/test_firewall.py`` runs it."""
MANIFEST = _only("docs/guides/kubernetes.md", r"^laggard kubernetes")
"""``tests/unit/test_kubernetes_jobs.py`` runs it."""
MPI_JOB = _only("docs/guides/kubernetes.md", r"^mpirun ")
"""``tests/clusters/test_launchers.py`` runs it."""
TOPOLOGY = _only("docs/links.md", r"^scontrol show topology")
DOWN = _only("docs/guides/slurm.md", r"^scontrol .*state=down")
IDLE_JOB = _only("docs/guides/coming-from-dragon.md", r"^laggard .*--idle=")
PROLOG = (_only("docs/guides/operator.md", r"^laggard doctor --past"), _only("docs/guides/operator.md", r"^scontrol "))
REQUEUE = _only("docs/guides/slurm.md", r"^scontrol requeue")
STATUS_STEP = _only("docs/guides/looking.md", r"^srun .*laggard status")
SUBMIT = _only("docs/guides/slurm.md", r"^sbatch job\.sh")
ARRAY = _only("docs/guides/slurm.md", r"^sbatch --array")
HETEROGENEOUS = _only("docs/guides/slurm.md", r"^sbatch .* : ")
INSIDE_SRUN = _only("docs/guides/slurm.md", r"^srun -N2 laggard")
SHELL = _only("docs/guides/slurm.md", r"^srun .*--pty bash")
RESUME_NODE = _only("docs/guides/slurm.md", r"^scontrol .*state=resume")
START_NOW = _only("docs/restart.md", r"^scontrol .*StartTime=now")
"""``tests/clusters`` runs them, with the ids and names of jobs and nodes."""
