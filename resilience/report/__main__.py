"""``python -m resilience.report FOLDER``: make the report of the job whose record is in the folder, into it."""

from __future__ import annotations

import sys
from pathlib import Path

from resilience.record.journal import JournalError
from resilience.report.material import read_material
from resilience.report.page import write_report
from telemetry.dump import DumpError

__all__ = ["main"]


def main(arguments: list[str]) -> int:
    """Return 0, or 1 after one line on what is wrong."""
    folder = Path(arguments[0])
    try:
        write_report(read_material(folder), folder)
    except (JournalError, DumpError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
