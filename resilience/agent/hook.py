"""What has a Python run our code at its start: a folder on its PYTHONPATH (:mod:`.python_start`)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

# Asks for what the hook does besides writing stacks, in one process.
IMPORTS = "LAGGARD_IMPORTS"
WARM = "LAGGARD_WARM"
WARM_ROOM = "LAGGARD_WARM_ROOM"
_FOLDER = Path(__file__).parent / "python_start"


def hook_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables with which each Python that is started runs our code first."""
    path = environ.get("PYTHONPATH", "")
    return {"PYTHONPATH": f"{_FOLDER}{os.pathsep}{path}" if path else str(_FOLDER)}
