"""Programs that see the driver library of ``fake_nvml.c``."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

__all__ = ["answer_of"]

ROOT = Path(__file__).parents[2]
DEADLINE_S = 60.0


def answer_of(library: Path, program: str, *arguments: str, **settings: str) -> Any:
    """Run a Python program with the library and its settings; return the JSON that it prints."""
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env={"LD_LIBRARY_PATH": str(library), **settings},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
