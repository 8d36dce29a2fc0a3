"""Bad input gets one clear line that names the value and what to do, and exit code 2."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from laggard.collectors.device import gpu_names
from laggard.resilience.command.cli import COMMANDS, load_command, main

# Nothing of these may start a process, so they are called in this one.


@pytest.fixture(autouse=True)
def _own_runtime_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAGGARD_RUNTIME_ROOT", str(tmp_path))


@pytest.fixture
def program(tmp_path: Path) -> str:
    path = tmp_path / "program.py"
    path.write_text("print('started')")
    return str(path)


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


def refusal(capfd: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Return the one line with which these arguments are refused."""
    assert main(arguments) == 2
    out, err = capfd.readouterr()
    assert out == ""
    (line,) = err.splitlines()
    assert line.startswith("laggard: ")
    return line.removeprefix("laggard: ")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--local-nodes=3", "--nodes=4"], r"--nodes=4 is more than the allocation of 3: use at most 3"),
        (["--nodes=0"], r"Invalid value for '--nodes' / '-N': 0 is less than 1, .*; without it: all, less --idle"),
        (["--local-nodes=2", "--idle=-1"], r"Invalid value for '--idle' / '-i': -1 is less than 0, the least"),
        (["--local-nodes=251"], r"Invalid value for '--local-nodes': 251 is more than 250, the most"),
        (["--local-nodes=2", "--idle=2"], r"--idle=2 leaves no node to run on: .* use 0 to 1"),
        (["--nodes=7"], r"--nodes=7 is more than the allocation of 1: .* \(--local-nodes makes virtual ones\)"),
        (["--exhaust-resources"], r"--exhaust-resources has no effect without --resilient: add it, or leave this out"),
        (["--resilent"], r"No such option '--resilent'.*Did you mean.*--resilient.*'laggard run --help'"),
        (["--nodes=two"], r"Invalid value for '--nodes' / '-N': 'two' is not a whole number"),
        (["--telemetry-level=5"], r"Invalid value for '--telemetry-level' / '-T': 5 is more than 4, the most"),
        (["--detect=fast-gpu"], r"Invalid value for '--detect': 'fast-gpu' is not one of 'slow-gpu', 'sections'"),
        (["--detect=slow-gpu,fast"], r"Invalid value for '--detect': 'fast' is not one of 'slow-gpu', 'sections'"),
        (["--detect=slow-gpu", "--detect-interval=0"], r"Invalid value for '--detect-interval': 0"),
        (
            ["--inline-probes"],
            r"--inline-probes has no effect without --detect=slow-gpu: add it",
        ),
        (["--restart-cost=30"], r"--restart-cost=30 has no effect without --detect: add it"),
        (["--detect=slow-gpu", "--restart-cost=-1"], r"Invalid value for '--restart-cost': -1"),
        (["--expected-duration=0"], r"Invalid value for '--expected-duration': 0"),
        (["--grace=-1"], r"Invalid value for '--grace': -1"),
        (["--grace=10s"], r"Invalid value for '--grace': '10s' is not a number: write 10, without a unit"),
        (["--virtual-gpus", "--per-node"], r".*'--per-node' is not a whole number: write --virtual-gpus=K "),
    ],
)
def test_wrong_options(capfd: pytest.CaptureFixture[str], program: str, options: list[str], message: str) -> None:
    assert re.match(message, refusal(capfd, *options, program))


def test_a_program_that_cannot_be_run(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert refusal(capfd, "missing.py") == "missing.py does not exist"
    assert re.match("Missing argument 'PROGRAM'", refusal(capfd, "--resilient"))
    assert re.match("Missing argument 'PROGRAM'", refusal(capfd, "--per-node"))
    assert refusal(capfd, "--per-node", "no-such-command").startswith("no-such-command is not a program")
    assert refusal(capfd, "python train.py --epochs=3").endswith("leave out the quotes (python train.py --epochs=3)")
    assert (
        refusal(capfd, "train.py 3.py")
        == "'train.py 3.py' is one word, not a command: leave out the quotes (train.py 3.py)"
    )
    assert refusal(capfd, "first.ipynb").startswith(
        "first.ipynb is a notebook: 'jupyter nbconvert --to script first.ipynb'"
    )
    assert refusal(capfd, str(tmp_path)) == f"{tmp_path} is a folder without a __main__.py: name the file to run"
    (tmp_path / "data.csv").touch()
    assert "cannot be run: make it executable" in refusal(capfd, str(tmp_path / "data.csv"))


def test_a_mistyped_command_is_taken_for_a_program_and_the_right_one_is_suggested(
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert (
        refusal(capfd, "stauts")
        == "stauts is not a program, neither a file nor on PATH; did you mean 'laggard status'?"
    )


def test_help_and_version_are_words_too(capfd: pytest.CaptureFixture[str]) -> None:
    for words, same in ((["help"], ["--help"]), (["help", "run"], ["run", "--help"]), (["version"], ["--version"])):
        assert main(words) == 0
        said = capfd.readouterr().out
        assert main(same) == 0
        assert said == capfd.readouterr().out


def test_a_wrong_option_of_a_command_leads_to_the_help_of_that_command(capfd: pytest.CaptureFixture[str]) -> None:
    assert "Did you mean '--json'? ('laggard status --help' lists" in refusal(capfd, "status", "--jsn")
    assert "'laggard replay --help'" in refusal(capfd, "replay")


@pytest.mark.parametrize("words", [[], *([name] for name in COMMANDS)], ids=" ".join)
def test_help_fits_eighty_columns_and_explains_every_option(
    words: list[str], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main([*words, "--help"]) == 0
    usage, *lines = capfd.readouterr().out.splitlines()
    assert [line for line in (usage, *lines) if len(line) > 80] == []
    assert [line for line in lines if line.endswith("...")] == []  # cut off
    options = [each for each in load_command(words[0]).params if isinstance(each, click.Option)] if words else []
    assert [option.name for option in options if not option.help] == []


def test_folders_that_cannot_be_written_to(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, program: str
) -> None:
    (tmp_path / "file").touch()
    assert refusal(capfd, "grafana", str(tmp_path / "file" / "below")).startswith("cannot write to ")
    monkeypatch.setenv("LAGGARD_RUNTIME_ROOT", str(tmp_path / "missing"))
    assert refusal(capfd, program) == (
        f"{tmp_path / 'missing'} cannot hold the private folder of the job (No such file or directory): "
        "name another place with LAGGARD_RUNTIME_ROOT"
    )


def test_invalid_yaml_is_named_with_its_line(capfd: pytest.CaptureFixture[str], program: str, tmp_path: Path) -> None:
    settings = tmp_path / "settings.yaml"
    settings.write_text("aggregator_port: 4242\ndump_dir: [\n")
    line = refusal(capfd, "--telemetry-level=1", f"--telemetry-config={settings}", program)
    assert re.fullmatch(r".*settings.yaml: not valid YAML: [^^]+ in line \d", line)


@pytest.mark.skipif(bool(gpu_names()), reason="this machine has GPUs")
def test_nothing_to_detect_on(capfd: pytest.CaptureFixture[str], program: str) -> None:
    line = refusal(capfd, "--detect=slow-gpu", program)
    assert line == "--detect=slow-gpu finds no GPU here: add --virtual-gpus=K, use --detect=sections, or leave it out"


def test_ports_that_are_taken(capfd: pytest.CaptureFixture[str], program: str, taken_port: int) -> None:
    for option, what in (("--state-port", "the state server"), ("--ray-port", "Ray's head")):
        assert refusal(capfd, f"{option}={taken_port}", program) == (
            f"port {taken_port} for {what} is taken: name another with {option}, or leave it out"
        )


@pytest.mark.parametrize("flag", ["--report-dir", "--checkpoint-dir"])
def test_a_folder_that_cannot_be_written_is_refused_before_the_job(
    capfd: pytest.CaptureFixture[str], program: str, flag: str
) -> None:
    line = refusal(capfd, f"{flag}=/proc/none", "--checkpoint-memory=10M", program)
    assert line == f"{flag}=/proc/none cannot be written: No such file or directory; name another folder"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may listen on any port")
@pytest.mark.parametrize("flag", ["--state-port", "--ray-port"])
def test_a_port_that_is_for_root_only_is_refused(capfd: pytest.CaptureFixture[str], program: str, flag: str) -> None:
    line = refusal(capfd, f"{flag}=80", program)
    assert line == f"{flag}=80 needs root, as ports below 1024 do: name another, or leave it out"


def test_a_state_directory_that_is_a_file(capfd: pytest.CaptureFixture[str], program: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "is a file" in refusal(capfd, f"--state-dir={tmp_path / 'file'}", program)
    below = tmp_path / "file" / "below"
    assert refusal(capfd, f"--state-dir={below}", program).startswith(f"cannot keep state in {below}: Not a directory")


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Be an ordinary user for a while: root may write everywhere."""
    monkeypatch.delenv("LAGGARD_RUNTIME_ROOT")  # our folder is not open to that user
    ours = os.geteuid()
    if ours == 0:
        os.seteuid(65534)
    yield
    os.seteuid(ours)


@pytest.mark.usefixtures("nobody")
def test_a_state_directory_without_permission(capfd: pytest.CaptureFixture[str]) -> None:
    assert refusal(capfd, "--state-dir=/usr/lib/laggard-state", "sh") == (
        "cannot keep state in /usr/lib/laggard-state: Permission denied; "
        "name a writable directory on a disk with free space"
    )


@pytest.mark.root("to mount a small file system")
def test_a_state_directory_without_space(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    mount = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k,mode=700", "tmpfs", str(tmp_path)], capture_output=True
    )
    if mount.returncode:
        pytest.skip(f"no file system can be mounted here: {mount.stderr.decode()}")
    try:
        (tmp_path / "filler").write_bytes(bytes(60 << 10))
        with contextlib.suppress(OSError), (tmp_path / "filler").open("ab") as file:
            while True:
                file.write(bytes(1))
                file.flush()
        line = refusal(capfd, f"--state-dir={tmp_path / 'state'}", "sh")
        assert line.startswith(f"cannot keep state in {tmp_path / 'state'}: ")
        assert "space" in line
    finally:
        subprocess.run(["umount", "--lazy", str(tmp_path)], check=True)
