"""Who runs this process, and where the user's own files are: a container may have neither a name nor a home for it."""

from __future__ import annotations

import getpass
import os
from collections.abc import Mapping
from pathlib import Path


def user_name() -> str:
    """Return the user's name, or else its number."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def state_home(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the user's folder for what laggard keeps: by the XDG base directory specification."""
    given = environ.get("XDG_STATE_HOME", "")
    return (Path(given) if Path(given).is_absolute() else _home() / ".local" / "state") / "laggard"


def _home() -> Path:
    try:
        return Path.home()
    except RuntimeError:
        return Path("/")  # as container runtimes have it for a user that they do not know
