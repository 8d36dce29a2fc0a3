"""``python -m laggard``: the ``laggard`` command."""

from __future__ import annotations

import sys

from laggard.interrupts import ended_by_interrupts

EXIT_FAILURE, EXIT_NOT_CHECKED = 1, 3


def main() -> int:
    """Run the command line and return its exit code."""
    # Where laggard's own libraries cannot be loaded, `laggard doctor` says nothing about the devices: its exit code is
    # not the one of a bad device.
    try:
        with ended_by_interrupts():
            from laggard.resilience.command import cli
    except ImportError as error:
        sys.stderr.write(f"laggard: the installation is incomplete: {error}\n")
        return EXIT_NOT_CHECKED if sys.argv[1:2] == ["doctor"] else EXIT_FAILURE
    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
