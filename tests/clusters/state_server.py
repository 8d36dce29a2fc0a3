"""A state server of the site's, encrypted, on a machine of its own."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from laggard.kvstore.client.connection import Endpoint
from laggard.system.certificates import Authority
from tests.clusters.machines import DEADLINE_S, Machine, wait_for
from tests.site_servers import DEBIANS

__all__ = ["site_state"]

_PORT = 6379
_PASSWORD = "a password of the site's"


@contextlib.contextmanager
def site_state(machine: Machine, folder: Path) -> Iterator[str]:
    """Run it on a machine; yields its URL. The folder's ``password`` and ``ca.pem`` are what its users are given."""
    if not DEBIANS.exists():
        pytest.skip(f"there is no {DEBIANS}, and the wheel's Valkey has no TLS")
    folder.mkdir()
    issued = Authority().issue(machine.address)
    files = {"password": _PASSWORD, "ca.pem": issued.authority, "crt": issued.certificate, "key": issued.key}
    for name, text in files.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o600)
    config = folder / "config"
    config.write_text(
        f"bind {machine.address}\nport 0\ntls-port {_PORT}\ntls-cert-file crt\ntls-key-file key\n"
        f'tls-auth-clients no\nrequirepass "{_PASSWORD}"\ndir {folder}\nsave ""\nappendonly yes\nappendfsync always\n'
    )
    endpoint = Endpoint(machine.address, _PORT, "none", _PASSWORD, issued.authority)

    def answers() -> bool:
        with machine.as_here(), contextlib.suppress(redis.ConnectionError), endpoint.connect() as client:
            return bool(client.ping())
        return False

    process = machine.start(str(DEBIANS), str(config), output=subprocess.DEVNULL, cwd=folder)
    wait_for(answers, "the site's server")
    try:
        yield f"rediss://{machine.address}:{_PORT}"
    finally:
        for each in machine.processes():
            if each.name() == DEBIANS.name:
                each.kill()
        process.wait(DEADLINE_S)
