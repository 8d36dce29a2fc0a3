"""A Ray cluster of several nodes on this machine, of the kind that laggard attaches to."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import subprocess
import sys
from pathlib import Path

import psutil

from laggard.resilience.allocation.base import loopback_network
from laggard.system.ports import free_port, listens
from tests.waiting import DEADLINE_S, wait_until

MARKER = "LAGGARD_TEST_CLUSTER"
SETTINGS = {
    "RAY_AUTH_MODE": "token",
    "RAY_USAGE_STATS_ENABLED": "0",
    # A killed node fails three checks within seconds; one that is only starved has time to answer.
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "30000",
    "RAY_health_check_failure_threshold": "3",
}
FREE = """
import json, ray
from ray._private.state import available_resources_per_node

ray.init(log_to_driver=False, logging_level=40)
names = {node["NodeID"]: node["NodeName"] for node in ray.nodes() if node["Alive"]}
free = available_resources_per_node()
print(json.dumps({names[node]: int(free[node].get("CPU", 0)) for node in names if node in free}))
"""
DRAIN = """
import os, subprocess, sys, ray

ray.init(log_to_driver=False, logging_level=40)
[node] = [node["NodeID"] for node in ray.nodes() if node["Alive"] and node["NodeName"] == sys.argv[1]]
reason = ["--reason=DRAIN_NODE_REASON_PREEMPTION", "--reason-message=spot", "--deadline-remaining-seconds=600"]
ray_command = [sys.executable, "-m", "ray.scripts.scripts", "drain-node", f"--address={os.environ['RAY_ADDRESS']}"]
subprocess.run([*ray_command, f"--node-id={node}", *reason], check=True)
"""


class Raylets:
    """Nodes with two CPUs and two GPUs each, called n1 (the head), n2 and so on.

    Attributes
    ----------
    devices
        What ``CUDA_VISIBLE_DEVICES`` lists for a node, by name.
    without_resources
        Names of nodes that offer neither CPUs nor GPUs.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.devices: dict[str, str] = {}
        self.without_resources: set[str] = set()
        self._network = loopback_network()
        self._marker = secrets.token_hex(8)
        self._nodes: dict[str, subprocess.Popen[bytes]] = {}
        token = directory / "token"
        token.write_text(secrets.token_hex(32))
        token.chmod(0o600)
        self.address = f"{self._network}.1:{free_port(f'{self._network}.1')}"
        self.environment = {**SETTINGS, "RAY_AUTH_TOKEN_PATH": str(token), "RAY_ADDRESS": self.address}

    def start(self, *names: str) -> None:
        """Start the nodes that are not running, and wait until they have joined the cluster."""
        for name in names:  # one by one: Ray's half minute per node may be too short on a busy machine
            wait_until(lambda: self._is_up(name), self._logs)  # noqa: B023 - called at once

    def _is_up(self, name: str) -> bool:
        """Return whether the cluster has a node; start it if it is not running."""
        if name not in self._nodes or self._nodes[name].poll() is not None:
            self._nodes[name] = self._start(name)
        return name in self.free_cpus()

    def _start(self, name: str) -> subprocess.Popen[bytes]:
        host, port = self.address.split(":")
        role = (
            ["--head", f"--port={port}", "--include-dashboard=false"] if name == "n1" else [f"--address={host}:{port}"]
        )
        devices = {"CUDA_VISIBLE_DEVICES": self.devices[name]} if name in self.devices else {}
        offered = 0 if name in self.without_resources else 2
        with (self._directory / f"{name}.log").open("wb") as log:
            return subprocess.Popen(
                [
                    *(sys.executable, "-m", "ray.scripts.scripts", "start", "--block", *role),
                    f"--node-ip-address={self._network}.{name[1:]}",
                    f"--node-name={name}",
                    f"--temp-dir={self._directory / name}",
                    *(f"--num-cpus={offered}", f"--num-gpus={offered}"),
                    *("--object-store-memory=100000000", "--disable-usage-stats"),
                    "--include-log-monitor=false",
                ],
                env={**os.environ, **self.environment, **devices, MARKER: self._marker},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def kill(self, name: str) -> None:
        """Kill a node with everything on it, as a crash of the machine would."""
        with self._nodes.pop(name) as node:
            for process in [*psutil.Process(node.pid).children(recursive=True), psutil.Process(node.pid)]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()

    def drain(self, name: str) -> None:
        """Have Ray drain a node, as a cloud's notice of preemption does."""
        command = [sys.executable, "-c", DRAIN, name]
        subprocess.run(
            command, env={**os.environ, **self.environment}, capture_output=True, timeout=DEADLINE_S, check=True
        )

    def free_cpus(self) -> dict[str, int]:
        """Return the number of free CPUs of each live node; empty while the head is down."""
        host, port = self.address.split(":")
        if not listens(host, int(port)):
            return {}
        answer = subprocess.run(
            [sys.executable, "-c", FREE],
            env={**os.environ, **self.environment},
            capture_output=True,
            timeout=DEADLINE_S,
        )
        return dict(json.loads(answer.stdout.splitlines()[0])) if answer.returncode == 0 else {}  # Ray may add to it

    def processes_of_jobs(self) -> list[str]:
        """Return the command lines of what laggard and its programs run on the nodes."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                environment = process.environ()
                ours = "LAGGARD_LAUNCH" in environment or "LAGGARD_AGENT" in environment
                if environment.get(MARKER) == self._marker and ours and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(" ".join(process.cmdline()))
        return found

    def stop(self) -> None:
        """End all nodes."""
        for name in reversed(list(self._nodes)):
            self.kill(name)

    def _logs(self) -> str:
        return "\n".join(path.read_text(errors="replace")[-2000:] for path in sorted(self._directory.glob("*.log")))
