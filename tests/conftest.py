"""Which tests may run beside which."""

from __future__ import annotations

import pytest

# They mostly wait, for Slurm's timers and for nodes that come up, so the others run beside them.
WAITING = ("tests/chaos/", "tests/integration/clusters/", "tests/integration/test_benchmarks.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Make two groups of all tests: within each one runs after the other."""
    for item in items:
        group = "waiting" if item.nodeid.startswith(WAITING) else "working"
        item.add_marker(pytest.mark.xdist_group(group))
