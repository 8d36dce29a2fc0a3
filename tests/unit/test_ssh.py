"""How the names of hosts are found."""

from __future__ import annotations

from pathlib import Path

import pytest

from laggard.resilience.allocation.host_files import Host
from laggard.resilience.allocation.ssh import Blaunch, Ssh
from laggard.resilience.errors import AllocationError

HOSTS = [Host("spare"), Host("node2", "ada", 2222)]


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder on PATH."""
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def write_ssh(folder: Path, script: str) -> None:
    (folder / "ssh").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "ssh").chmod(0o755)


def test_a_host_is_looked_up_by_the_name_that_the_configuration_of_ssh_has_for_it(programs: Path) -> None:
    write_ssh(programs, 'echo user ada; test "$*" = "-G spare" && echo hostname node7')
    assert Ssh(HOSTS).names_of(HOSTS) == {"spare": "node7", "node2": "node2"}


def test_a_configuration_that_hangs_is_named(programs: Path) -> None:
    write_ssh(programs, "kill -STOP $$")
    with pytest.raises(AllocationError, match=r"^ssh -G spare does not end within 0\.1 s: look for Match exec"):
        Ssh(HOSTS, configuration_deadline_s=0.1).names_of(HOSTS)


@pytest.mark.usefixtures("programs")
def test_a_missing_ssh_is_named_but_for_lsf_which_has_a_remote_shell_of_its_own() -> None:
    with pytest.raises(AllocationError, match=r"^ssh is not on PATH"):
        Ssh(HOSTS).names_of(HOSTS)
    assert Blaunch().names_of(HOSTS) == {"spare": "spare", "node2": "node2"}
