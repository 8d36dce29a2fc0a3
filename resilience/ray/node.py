"""One node's Ray processes: ``ray start``, loaded in advance.

Loading Ray takes much of the time that a node needs to start. So the agent of the node that will be swapped in next
starts this module early. It loads Ray and waits for its arguments: one JSON list on standard input.

Standard input stays open as long as the agent lives. Usually the agent ends these processes, and if the agent was
killed, the controller does. If both are killed at once, this process does it itself.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Sequence

from laggard.resilience.agent.processes import end_descendants
from laggard.resilience.ray.private_api import ray_command, replace_dashboard_agent
from laggard.system.ports import free_ports

END_DEADLINE_S = 5.0
# What a node needs at the least: its own three, and one of a worker.
N_PORTS = 4
# Of parts of Ray that we switch off; Ray refuses to use them for others all the same.
_OF_OTHERS = {8265, 10001, 52365}


def main() -> None:
    """Wait for the arguments, then run ``ray`` with them (``start --block`` lasts as long as the node is up)."""
    run_ray = ray_command()
    line = sys.stdin.readline()
    if line:
        replace_dashboard_agent()
        threading.Thread(target=_end_with_the_agent, name="agent-watch", daemon=True).start()
        run_ray([*json.loads(line), *port_options(free_ports(N_PORTS))])


def port_options(free: Sequence[int]) -> list[str]:
    """Return the options of ``ray start`` for these ports, one of them for each worker; none: any ports. Pure."""
    if not free:
        return []
    *workers, raylet, objects, environments = (port for port in free if port not in _OF_OTHERS)
    return [
        f"--node-manager-port={raylet}",
        f"--object-manager-port={objects}",
        f"--runtime-env-agent-port={environments}",
        f"--worker-port-list={','.join(map(str, workers))}",
    ]


def _end_with_the_agent() -> None:
    sys.stdin.read()
    end_descendants(deadline_s=END_DEADLINE_S)
    os._exit(1)


if __name__ == "__main__":
    main()
