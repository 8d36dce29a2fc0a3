"""What every node of a job loads before it can begin."""

from __future__ import annotations

import subprocess
import sys


def test_an_agent_loads_no_client_of_a_server_that_it_never_asks() -> None:
    heavy = {"cryptography", "numpy", "ray", "redis", "rich"}
    program = f"import sys, resilience.agent; print(*{heavy!r} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "\n"
