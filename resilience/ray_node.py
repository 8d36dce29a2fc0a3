"""One node's Ray processes: ``ray start``, loaded ahead of its time.

Loading Ray takes a good part of a node's start. So the agent of the node that is next to be swapped in starts this
module early; it waits here, loaded, for its arguments: one JSON list on standard input.

That input stays open as long as the agent lives. Usually the agent ends what is here, and when it was killed, the
controller does. Should both be killed at once, this process is left to do it.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import sys
import threading
from typing import Any

from resilience.processes import end_descendants

__all__ = ["main"]

END_DEADLINE_S = 5.0
_PORTS_OF_THE_AGENT = ("METRICS_AGENT_PORT_NAME", "METRICS_EXPORT_PORT_NAME", "DASHBOARD_AGENT_LISTEN_PORT_NAME")


def main() -> None:
    """Wait for the arguments, then be ``ray start`` (with ``--block`` it lasts as long as the node)."""
    from ray.scripts import scripts

    line = sys.stdin.readline()
    if line:
        _leave_out_the_dashboard_agent()
        threading.Thread(target=_end_with_the_agent, name="agent-watch", daemon=True).start()
        scripts.cli(args=json.loads(line))


def _leave_out_the_dashboard_agent() -> None:
    """Have the raylet start a process that only waits, in place of the agent of a dashboard that no job of ours has.

    That agent takes half a second of processor time at each node's start, and some more as long as the node is up.
    """
    from ray._private import ray_constants, services

    compiled: Any = importlib.import_module("ray._raylet")
    start_raylet, command_of = services.start_raylet, services._build_python_executable_command_memory_profileable

    def start_without(*given: Any, **named: Any) -> Any:
        arguments = inspect.signature(start_raylet).bind(*given, **named).arguments
        for port in _PORTS_OF_THE_AGENT:  # -1: nobody listens there
            compiled.persist_port(arguments["session_dir"], arguments["node_id"], getattr(compiled, port), -1)
        return start_raylet(*given, **named)

    def command_that_waits(component: str, *rest: Any, **named: Any) -> list[str]:
        if component == ray_constants.PROCESS_TYPE_DASHBOARD_AGENT:
            return ["/bin/sh", "-c", "exec cat"]  # until the raylet ends; the arguments that follow are nothing to it
        return [*command_of(component, *rest, **named)]

    services.start_raylet = start_without
    services._build_python_executable_command_memory_profileable = command_that_waits


def _end_with_the_agent() -> None:
    sys.stdin.read()
    end_descendants(deadline_s=END_DEADLINE_S)
    os._exit(1)


if __name__ == "__main__":
    main()
