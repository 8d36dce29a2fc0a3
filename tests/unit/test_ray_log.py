"""Why Ray is not up on a node, from logs as Ray writes them."""

from __future__ import annotations

import pytest

from laggard.resilience.nodes.wording import ray_ended
from laggard.resilience.reading.ray_log import why_ray_ended
from laggard.resilience.wire.ray import RayEnded

RAYLET = """\
E1128 20:27:31.539714841   18162 chttp2_server.cc:1059] UNKNOWN:No address added out of total 1 resolved
[2026-11-28 20:27:31,742 I 18162 18162] (raylet) main.cc:300: Setting cluster ID
[2026-11-28 20:27:31,749 C 18162 18162] (raylet) grpc_server.cc:134:  An unexpected system state has occurred. You \
have likely discovered a bug in Ray. Please report this issue. Check failed: server_ Failed to start the grpc server. \
The specified port is 45671.
*** StackTrace Information ***
ray/core/src/ray/raylet/raylet(+0xff770a) [0x55fe9e17a70a] ray::operator<<()
"""
FATAL = (
    "(raylet) grpc_server.cc:134: Check failed: server_ Failed to start the grpc server. The specified port is 45671."
)
COMMAND = """\
2026-11-28 20:27:27,427\tINFO scripts.py:1043 -- Local node IP: 192.0.2.2
Traceback (most recent call last):
  File "ray/_private/node.py", line 440, in __init__
Exception: The current node timed out during startup.

2026-11-28 20:28:01,427\tINFO scripts.py:1043 -- Ray has stopped
"""


@pytest.mark.parametrize(
    ("parts", "command", "why"),
    [
        (["[2026-11-28 20:27:31,742 I 1 1] (gcs_server) x.cc:1: up\n", RAYLET], COMMAND, FATAL),
        ([], COMMAND, "Exception: The current node timed out during startup."),
        (["[2026-11-28 20:27:31,742 W 1 1] (raylet) x.cc:1: slow\n"], COMMAND.splitlines()[0], ""),
        ([], "", ""),
    ],
)
def test_the_fatal_line_says_why_and_no_routine_line_does(parts: list[str], command: str, why: str) -> None:
    assert why_ray_ended(parts, command) == why


@pytest.mark.parametrize(
    ("end", "says"),
    [
        (RayEnded(FATAL, -9), FATAL),
        (RayEnded("", -11), "'ray start' died of SIGSEGV and says nothing"),
        (RayEnded("", 1), "'ray start' ended with exit code 1 and says nothing"),
        (RayEnded(), "Ray's processes say nothing"),
    ],
)
def test_without_a_line_how_it_ended_is_all_that_is_known(end: RayEnded, says: str) -> None:
    assert ray_ended(end) == says
