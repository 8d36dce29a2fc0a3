"""The endpoint and its file, and the wire format of commands."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from laggard.kvstore.client.connection import PACKER, Endpoint
from laggard.kvstore.errors import EndpointFileError

ENDPOINT = Endpoint("127.0.0.1", 6390, "job-1", "secret")


def test_a_saved_endpoint_is_read_back(tmp_path: Path) -> None:
    ENDPOINT.save(tmp_path / "endpoint.json")
    assert Endpoint.load(tmp_path / "endpoint.json") == ENDPOINT


def test_only_the_owner_can_read_the_file_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        ENDPOINT.save(tmp_path / "endpoint.json")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "endpoint.json").stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["endpoint.json"]


@pytest.mark.root("to become another user")
def test_another_user_cannot_read_the_file(tmp_path: Path) -> None:
    path = tmp_path / "endpoint.json"
    ENDPOINT.save(path)
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == os.geteuid() and folder.is_relative_to("/tmp"):  # noqa: S108 - only widens our own
            folder.chmod(folder.stat().st_mode | 0o755)
    program = "import os, sys; os.setgid(65534); os.setuid(65534); os.stat(sys.argv[1]); open(sys.argv[1])"
    attempt = subprocess.run([sys.executable, "-I", "-c", program, str(path)], capture_output=True, text=True)
    assert "PermissionError" in attempt.stderr
    assert "line 1, in <module>" in attempt.stderr


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o644])
def test_a_file_that_others_can_open_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "endpoint.json"
    ENDPOINT.save(path)
    path.chmod(mode)
    with pytest.raises(EndpointFileError, match=f"mode {mode:04o}.*chmod 600"):
        Endpoint.load(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(EndpointFileError, match=r"cannot use the endpoint file .*nothing.json: No such file"):
        Endpoint.load(tmp_path / "nothing.json")


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"host": "a"}', "{", '"x"'])
def test_a_damaged_file_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "endpoint.json"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(EndpointFileError, match="its content is not valid"):
        Endpoint.load(path)


def test_its_text_hides_the_password() -> None:
    assert "secret" not in f"{ENDPOINT} {ENDPOINT!r}"


def test_all_keys_of_a_job_share_a_slot() -> None:
    assert ENDPOINT.key("a", "b") == "laggard:{job-1}:a:b"


@pytest.mark.parametrize("job", ["", "a b", "a{b}", "a:b", "a*", "x" * 129, "a\n"])
def test_a_job_id_that_would_garble_keys_is_refused(job: str) -> None:
    with pytest.raises(ValueError, match="must be 1 to 128 letters"):
        Endpoint("h", 1, job, "p")


def test_a_large_argument_is_not_copied() -> None:
    large = bytearray(1 << 20)
    packed = PACKER.pack("SET", "key", memoryview(large), "EX", 1)
    views = [part for part in packed if isinstance(part, memoryview)]
    assert [view.obj is large for view in views] == [True]


def test_small_arguments_are_one_send() -> None:
    assert len(PACKER.pack("XADD", "key", "*", *["field", "value"] * 1000)) == 1


@pytest.mark.parametrize("argument", [None, True, [1]])
def test_an_argument_of_another_type_is_refused(argument: object) -> None:
    with pytest.raises(TypeError, match="a command's argument cannot be a"):
        PACKER.pack("SET", "key", argument)
