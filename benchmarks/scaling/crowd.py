"""A crowd of nodes that send readings, each over its own connection, as a node's collector does.

``python -m benchmarks.scaling.crowd`` reads its plan as JSON from standard input, connects, prints ``ready``, reads the
Unix time of the first round, and sends one round after the other until its input is closed; then it prints its record
as JSON.
"""

from __future__ import annotations

import json
import os
import random
import resource
import selectors
import socket
import sys
import time
from collections import deque
from dataclasses import asdict, dataclass, field
from functools import partial
from hashlib import sha1
from pathlib import Path
from typing import cast

import numpy as np
import redis

from laggard.collectors.probe_schedule import JITTER
from laggard.kvstore.client.connection import PACKER, Endpoint
from laggard.kvstore.client.fence import EXECUTE_LUA, Command, FencedWriter
from laggard.kvstore.series.streams import Sample, Series

__all__ = ["METRIC", "CrowdPlan", "CrowdRecord", "host_name"]

METRIC = "gpu-probe-time"
REPEATS = 3
PROBE_S = 0.010
# Of healthy GPUs: between rounds, and between the repeats of one round.
NOISE, REPEAT_NOISE = 0.004, 0.002
SLOWDOWN = 1.3
TICK_S = 0.01
WINDOW_S = 300.0
READ_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class CrowdPlan:
    """What a crowd is to do.

    Attributes
    ----------
    endpoint_file
        The state server's endpoint file.
    first, hosts, devices
        Number of the first node, number of nodes, and devices per node.
    interval_s
        Time between rounds.
    slow_host, slow_round
        The node whose device 0 becomes slow, and the first slow round.
    """

    endpoint_file: str
    first: int
    hosts: int
    devices: int
    interval_s: float
    slow_host: int
    slow_round: int


@dataclass(slots=True)
class CrowdRecord:
    """What a crowd did.

    Attributes
    ----------
    sent, refused
        Number of samples sent, and of those the server refused.
    behind_s
        Delay of each round's last sample.
    slow_s
        Unix time of the first slow sample; 0 if there was none.
    """

    sent: int = 0
    refused: int = 0
    behind_s: list[float] = field(default_factory=list)
    slow_s: float = 0.0


def host_name(number: int) -> str:
    """Return the name of a node."""
    return f"node{number:05d}"


def _reading(now_s: float, values: list[float]) -> bytes:
    """Return the start of a stored sample; its length is always the same."""
    return f"[{now_s:017.6f}, [{', '.join(f'{value:.9f}' for value in values)}]".encode()


class Crowd:
    """Nodes that send readings."""

    def __init__(self, plan: CrowdPlan) -> None:
        self._plan = plan
        self.record = CrowdRecord()
        endpoint = Endpoint.load(Path(plan.endpoint_file))
        client = endpoint.connect()
        client.script_load(EXECUTE_LUA)
        self._script = sha1(EXECUTE_LUA.encode(), usedforsecurity=False).hexdigest()
        self._series = partial(Series, client, endpoint, 0)
        self._writer = FencedWriter(client, endpoint, 0)
        self._selector = selectors.DefaultSelector()
        self._connections = [self._connect(endpoint) for _ in range(plan.hosts)]
        self._messages = [[self._message(host, gpu) for gpu in range(plan.devices)] for host in range(plan.hosts)]
        self._rng = np.random.default_rng(plan.first)

    def _connect(self, endpoint: Endpoint) -> socket.socket:
        connection = socket.create_connection((endpoint.host, endpoint.port), 30.0)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(b"".join(PACKER.pack("AUTH", endpoint.password)))
        if (answer := connection.recv(100)) != b"+OK\r\n":
            raise redis.ConnectionError(f"the state server refused a node: {answer.decode()}")
        connection.settimeout(0)
        self._selector.register(connection, selectors.EVENT_READ, connection)
        return connection

    def run(self, start_s: float) -> None:
        """Send rounds from ``start_s`` on, until standard input is closed."""
        self._selector.register(sys.stdin, selectors.EVENT_READ, None)
        number = 0
        while self._round(number, start_s + number * self._plan.interval_s):
            number += 1

    def _round(self, number: int, begin_s: float) -> bool:
        plan = self._plan
        readings = self._readings(number).tolist()
        due = [
            (begin_s + random.uniform(-JITTER, JITTER) * plan.interval_s, host, gpu)
            for host in range(plan.hosts)
            for gpu in range(plan.devices)
        ]
        due.sort()
        waiting = deque(due)
        while waiting:
            if not self._listen(TICK_S):
                return False
            now_s = time.time()
            while waiting and waiting[0][0] <= now_s:
                due_s, host, gpu = waiting.popleft()
                self._send(host, gpu, readings[host][gpu], now_s)
        self.record.behind_s.append(round(time.time() - due_s, 3))
        return True

    def _readings(self, number: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
        plan = self._plan
        shape = (plan.hosts, plan.devices, 1)
        noise = self._rng.normal(0, NOISE, shape)
        repeats = np.abs(self._rng.normal(0, REPEAT_NOISE, (*shape[:2], REPEATS)))
        seconds = PROBE_S * np.exp(noise + repeats)
        row = plan.slow_host - plan.first
        if number >= plan.slow_round and 0 <= row < plan.hosts:
            seconds[row, 0] *= SLOWDOWN
        return seconds

    def _send(self, host: int, gpu: int, values: list[float], now_s: float) -> None:
        plan = self._plan
        before, between, after = self._messages[host][gpu]
        oldest = b"%013d" % int((now_s - WINDOW_S) * 1000)
        command = b"".join((before, oldest, between, _reading(now_s, values), after))
        if self._connections[host].send(command) != len(command):
            raise redis.ConnectionError("the state server does not accept data")
        self.record.sent += 1
        if plan.first + host == plan.slow_host and gpu == 0 and values[0] > PROBE_S * (1 + SLOWDOWN) / 2:
            self.record.slow_s = self.record.slow_s or now_s

    def _message(self, host: int, gpu: int) -> tuple[bytes, ...]:
        """Return what a collector sends for a device, split around the times and values, which change."""
        name, now_s, values = host_name(self._plan.first + host), 1e9, [PROBE_S] * REPEATS
        tags = {"host": name, "gpu": str(gpu), "model": "NVIDIA H100 80GB HBM3", "uuid": f"GPU-{name}-{gpu:026d}"}
        to_add, names = self._series(name).commands([Sample(METRIC, now_s, tuple(values), tags)])
        add, key, *rest = to_add
        oldest, text = str(rest[2]), str(rest.pop())
        reading = _reading(now_s, values).decode()
        message = reading + ", " + text[text.index("{") :]
        command = cast("Command", (add, key, *rest, message))
        keys, arguments = self._writer.call([command, names])
        packed = b"".join(PACKER.pack("EVALSHA", self._script, len(keys), *keys, *arguments))
        before, _, rest_of_it = packed.partition(oldest.encode())
        between, _, after = rest_of_it.partition(reading.encode())
        return before, between, after

    def _listen(self, wait_s: float) -> bool:
        for key, _ in self._selector.select(wait_s):
            if key.data is None:
                return False
            answer = key.data.recv(READ_BYTES)
            self.record.refused += answer.count(b"\r\n-") + answer.startswith(b"-")
            if not answer:
                raise redis.ConnectionError("the state server has closed a node's connection")
        return True


def main() -> None:
    plan = CrowdPlan(**json.loads(sys.stdin.readline()))
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    crowd = Crowd(plan)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    crowd.run(float(sys.stdin.readline()))
    usage = os.times()
    print(json.dumps({**asdict(crowd.record), "cpu_s": usage.user + usage.system}))


if __name__ == "__main__":
    main()
