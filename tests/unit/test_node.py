"""The controller's end of the pipe to an agent."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from laggard.kvstore.control import NodeRecord
from laggard.resilience.allocation.base import ChildAgent
from laggard.resilience.nodes.node import Node
from laggard.resilience.nodes.notices import Unreadable
from laggard.resilience.wire import ALIVE
from tests.waiting import wait_until


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{", "MessageError: a line is not JSON"),
        ('{"is": "Name"}', "MessageError: Name is not expected here"),
        ('{"is": "LeftoversEnded", "n_ended": "x"}', "MessageError: LeftoversEnded.n_ended must be of type int"),
    ],
)
def test_a_node_whose_messages_cannot_be_read_is_lost_and_says_why(line: str, why: str) -> None:
    writes = f"print({ALIVE.decode().rstrip()!r}, {line!r}, sep='\\n', flush=True); input()"
    agent = subprocess.Popen(
        [sys.executable, "-c", writes], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    node = Node(NodeRecord("n2", "127.0.0.3", ()), ChildAgent(agent), threading.Condition())
    wait_until(lambda: node.agent.gone)
    assert node.agent.has_started
    (notice,) = node.take_notices()
    assert isinstance(notice, Unreadable)
    assert f"{notice.kind}: {notice.problem}".startswith(why)
    node.agent.kill()
