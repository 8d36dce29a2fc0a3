"""What an agent imports before it can start."""

from __future__ import annotations

import subprocess
import sys


def test_an_agent_imports_no_heavy_library() -> None:
    heavy = {"cryptography", "numpy", "ray", "redis", "rich"}
    program = f"import sys, laggard.resilience.agent.agent; print(*{heavy!r} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "\n"
