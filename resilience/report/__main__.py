"""``python -m laggard.resilience.report FOLDER``: write the report of the job whose record is in the folder, there."""

from __future__ import annotations

import sys
from pathlib import Path

from laggard.resilience.record.journal import JournalError
from laggard.resilience.report.inputs import read_inputs
from laggard.resilience.report.page import write_report
from laggard.telemetry.dump import DumpError

__all__ = ["main"]


def main(arguments: list[str]) -> int:
    """Write the report; return 0, or 1 after printing one line on what is wrong."""
    folder = Path(arguments[0])
    try:
        write_report(read_inputs(folder), folder)
    except (JournalError, DumpError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
