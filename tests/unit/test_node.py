"""The controller's end of the pipe to an agent."""

from __future__ import annotations

import json
import subprocess
import sys
import threading

import pytest

from laggard.kvstore.control import NodeRecord
from laggard.resilience.nodes.node import Node
from tests.waiting import wait_until

ALIVE = json.dumps({"event": "alive"})


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{", "JSONDecodeError"),
        ('{"name": 1}', "KeyError: 'event'"),
        ('{"event": "leftovers-ended", "ended": "x"}', "ValueError"),
    ],
)
def test_a_node_whose_messages_cannot_be_read_is_lost_and_says_why(line: str, why: str) -> None:
    writes = f"print({ALIVE!r}, {line!r}, sep='\\n', flush=True); input()"
    agent = subprocess.Popen(
        [sys.executable, "-c", writes], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    node = Node(NodeRecord("n2", "127.0.0.3", ()), agent, threading.Condition())
    wait_until(lambda: node.gone)
    assert node.has_started
    (notice,) = node.take_notices()
    assert notice.startswith(f"its agent's messages cannot be read ({why}")
    node.kill()
