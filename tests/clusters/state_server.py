"""A state server of the site's, on a machine of its own."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import redis

from tests.clusters.machines import DEADLINE_S, Machine, wait_for
from tests.site_servers import PROGRAMS

__all__ = ["site_state"]

_PORT = 6379
_PASSWORD = "a password of the site's"


@contextlib.contextmanager
def site_state(machine: Machine, folder: Path) -> Iterator[str]:
    """Run it on a machine with its files in a folder; yields its URL. Its password is in the folder's ``password``."""
    folder.mkdir()
    (folder / "password").write_text(_PASSWORD)
    (folder / "password").chmod(0o600)
    config = folder / "config"
    config.write_text(
        f'bind {machine.address}\nport {_PORT}\nrequirepass "{_PASSWORD}"\ndir {folder}\n'
        'save ""\nappendonly yes\nappendfsync always\n'
    )

    def answers() -> bool:
        with machine.as_here(), contextlib.suppress(redis.ConnectionError):
            return bool(redis.Redis(machine.address, _PORT, password=_PASSWORD).ping())
        return False

    process = machine.start(str(PROGRAMS["valkey"]), str(config), output=subprocess.DEVNULL)
    wait_for(answers, "the site's server")
    try:
        yield f"redis://{machine.address}:{_PORT}"
    finally:
        for each in machine.processes():
            if each.name() == PROGRAMS["valkey"].name:
                each.kill()
        process.wait(DEADLINE_S)
