"""``python -m laggard``: the ``laggard`` command."""

from __future__ import annotations

import sys

from laggard.resilience.command.cli import main

if __name__ == "__main__":
    sys.exit(main())
