"""What a container allows: processors, shared memory, and a last word to the operators of its cluster."""

from __future__ import annotations

import http.server
import json
import os
import ssl
import threading
from pathlib import Path
from typing import Any

import pytest

from laggard.resilience.allocation.joined import JoinedAllocation
from laggard.resilience.allocation.machines import LEAST_SHARED_BYTES
from laggard.resilience.allocation.place import JoinSecret, Place
from laggard.resilience.allocation.pod import Pod
from laggard.resilience.controller.controller import ENDING_S, LAST_GRACE_S
from laggard.resilience.controller.resource_manager import ResourceManager
from laggard.resilience.errors import ResourceManagerError
from laggard.resilience.wire.handshake import Handshake
from laggard.system.certificates import Authority
from laggard.system.processors import usable_processors
from laggard.system.termination_message import leave
from tests.waiting import DEADLINE_S, wait_until

GROUPS = "sys/fs/cgroup"


def machine(root: Path, group: str, **files: str) -> Path:
    """Return the root of a machine on which this process is in a control group, of which some files are given."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(f"0::{group}\n")
    for name, text in files.items():
        path = root / GROUPS / name.replace("__", "/").replace("_max", ".max").replace("cpu_cfs", "cpu.cfs")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("files", "count"),
    [
        ({}, 8),
        ({"cpu_max": "max 100000"}, 8),
        ({"cpu_max": "350000 100000"}, 3),
        ({"cpu_max": "20000 100000"}, 1),
        ({"cpu_max": "9000000 100000"}, 8),
        ({"cpu_max": "400000 100000", "pods__a__cpu_max": "600000 100000"}, 4),
        ({"cpu_max": "600000 100000", "pods__a__cpu_max": "200000 100000"}, 2),
        ({"cpu__cpu_cfs_quota_us": "250000", "cpu__cpu_cfs_period_us": "100000"}, 2),
        ({"cpu__cpu_cfs_quota_us": "-1", "cpu__cpu_cfs_period_us": "100000"}, 8),
    ],
)
def test_the_quota_of_a_container_limits_its_processors(
    files: dict[str, str], count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    assert usable_processors(machine(tmp_path, "/pods/a", **files)) == count


def test_a_last_word_is_left_where_kubernetes_reads_it_and_nowhere_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "termination-log"
    monkeypatch.setenv("LAGGARD_TERMINATION_MESSAGE", str(place))
    leave("gpu 3 is slow")
    assert not place.exists()
    place.touch()
    leave("")
    assert place.read_text() == ""
    leave("gpu 3 is slow" * 1000)
    assert place.read_text() == ("gpu 3 is slow" * 1000)[:4096]


def test_nodes_with_little_shared_memory_are_named() -> None:
    allocation = JoinedAllocation(Place(0, 3, "first", 1), "10.0.0.1", JoinSecret(b""), 1, 0.0)
    told: list[str] = []
    for node, size_bytes in zip(allocation.nodes, (LEAST_SHARED_BYTES, 64 << 20, 0), strict=True):
        allocation._learn(node.hostname, Handshake(4, (), node.hostname, size_bytes))
    allocation._tell_small(told.append)
    (line,) = told
    assert line.startswith("64 MiB of shared memory on index1, index2: NCCL, data loaders and checkpoints want more")
    assert allocation.ray_options(allocation.nodes[0]) == ["--num-gpus=1", "--num-cpus=4"]


def test_a_pod_that_is_told_to_end_lets_the_program_save_for_all_of_its_grace() -> None:
    assert Pod(60 + ENDING_S).time_to_save().grace_s(60, LAST_GRACE_S, ENDING_S) == 60


class ApiServer(http.server.HTTPServer):
    """Stands in for Kubernetes' API server, for the one request that is made; keeps what it gets."""

    def __init__(self, code: int, authority: Authority, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Patch)
        self.code = code
        self.got: list[tuple[str, str, str, dict[str, Any]]] = []
        own = authority.issue("127.0.0.1")
        (folder / "server.pem").write_text(own.certificate + own.key)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "server.pem")
        self.socket = context.wrap_socket(self.socket, server_side=True)
        self.timeout = DEADLINE_S


class _Patch(http.server.BaseHTTPRequestHandler):
    server: ApiServer

    def do_PATCH(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.got.append((self.path, self.headers["Authorization"], self.headers["Content-Type"], body))
        self.send_response(self.server.code)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def _remark(folder: Path, code: int = 200, trusted: Authority | None = None, **variables: str) -> ApiServer:
    """Return a stand-in to which a pod was to remark something on a machine."""
    authority = Authority()
    (folder / "token").write_text("t0ken\n")
    (folder / "ca.crt").write_text((trusted or authority).certificate)
    with ApiServer(code, authority, folder) as server:
        serving = threading.Thread(target=server.serve_forever, args=[0.01])
        serving.start()
        where = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(server.server_port)}
        try:
            Pod(60.0, {**where, **variables}, folder).remark("gke-7/x", "train-ab: gpu 3 is slow")
        finally:
            server.shutdown()
            serving.join(DEADLINE_S)
        return server


def test_a_remark_becomes_an_annotation_of_the_machines_node_if_the_manifest_asks_for_it(tmp_path: Path) -> None:
    change = {"metadata": {"annotations": {"laggard/verdict": "train-ab: gpu 3 is slow"}}}
    got = _remark(tmp_path, LAGGARD_ANNOTATE_NODES="1").got
    assert got == [("/api/v1/nodes/gke-7%2Fx", "Bearer t0ken", "application/merge-patch+json", change)]
    assert _remark(tmp_path).got == []


def test_a_pod_that_may_not_annotate_nodes_says_so_and_gives_its_token_to_no_stranger(tmp_path: Path) -> None:
    with pytest.raises(ResourceManagerError, match="node gke-7/x was not annotated: the API server answers 403"):
        _remark(tmp_path, 403, LAGGARD_ANNOTATE_NODES="1")
    with pytest.raises(ResourceManagerError, match="CERTIFICATE_VERIFY_FAILED"):
        _remark(tmp_path, trusted=Authority(), LAGGARD_ANNOTATE_NODES="1")
    with pytest.raises(ResourceManagerError, match="KUBERNETES_SERVICE_PORT"):
        Pod(60.0, {"LAGGARD_ANNOTATE_NODES": "1", "KUBERNETES_SERVICE_HOST": "h"}, tmp_path).remark("a", "b")


def test_what_becomes_of_a_remark_delays_nobody_and_a_failure_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    allocation = JoinedAllocation(Place(0, 1, "first", 1), "10.0.0.1", JoinSecret(b""), 1, 0.0)
    allocation.manager = Pod(60.0, {"LAGGARD_ANNOTATE_NODES": "1"}, tmp_path)
    manager = ResourceManager(allocation)
    manager.remark("gke-7", "slow")
    manager.close()
    wait_until(lambda: "node gke-7 was not annotated" in caplog.text, lambda: caplog.text)
