"""Another user of the same machine tries to get into a running job."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import psutil
import pytest

from laggard.kvstore.client.connection import Endpoint
from laggard.kvstore.server.process import StateServer
from tests.integration.jobs import RunningJob, metrics_of
from tests.integration.other_user import REFUSED, greet, trusting_anybody
from tests.integration.serving import serve
from tests.processes import seen_of
from tests.waiting import wait_until

pytestmark = pytest.mark.root("to become another user")

DEADLINE_S = 120.0
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - we only look
WORK = """
    import signal

    import ray

    from laggard.detectors import SlowGPUDetector
    from laggard.kvstore import State

    ray.init()

    @ray.remote(num_gpus=1)
    class Worker:
        def work(self):
            signal.pause()

    state = State.current()
    state["result"] = bytes(1_000_000)
    running = [worker.work.remote() for worker in [Worker.remote() for _ in range(2)]]
    with SlowGPUDetector(collection_rate=1, state=state):
        print("working", flush=True)
        ray.get(running)
"""


@dataclass
class Job:
    """A running job, and everything that another user could try to access."""

    running: RunningJob
    endpoint: Endpoint
    node_directory: Path
    processes: list[psutil.Process]
    listening: dict[tuple[str, int], str]

    def targets(self) -> dict[str, Any]:
        """Return what another user tries to access."""
        runtime = self.node_directory.parent
        paths = [runtime, *runtime.rglob("*")]
        ray_http: list[tuple[str, int]] = []
        ray: list[tuple[str, int]] = []
        for address, what in self.listening.items():
            if what in {"state", "telemetry"}:
                continue
            (ray_http if what == "runtime-env" else ray).append(address)
        return {
            "pids": [process.pid for process in self.processes],
            "folders": [str(path) for path in paths if path.is_dir()],
            "files": [str(path) for path in paths if path.is_file()],
            "sockets": [str(path) for path in paths if path.is_socket()],
            "shared_memory": sorted({name for names in seen_of(self.processes, shared_memory_of) for name in names}),
            "state": [self.endpoint.host, self.endpoint.port, self.endpoint.key()],
            "telemetry": next(port for (_, port), what in self.listening.items() if what == "telemetry"),
            "ray_ports": ray,
            "ray_http_ports": ray_http,
        }


def shared_memory_of(process: psutil.Process) -> list[str]:
    """Return the shared memory of one process that others could open by its name."""
    # Not all of /dev/shm: other tests, running at the same time, have their own in there.
    mapped = [region.path for region in process.memory_maps()]
    return [name for name in mapped if Path(name).is_relative_to(SHARED_MEMORY) and Path(name).is_file()]


def listening_of(process: psutil.Process) -> dict[tuple[str, int], str]:
    """Return where one process listens, with its kind."""
    listening = [each for each in process.net_connections("tcp") if each.status == psutil.CONN_LISTEN]
    return {(str(each.laddr.ip).replace("::", "127.0.0.1"), each.laddr.port): kind_of(process) for each in listening}


def kind_of(process: psutil.Process) -> str:
    command = " ".join(process.cmdline())
    known = {"valkey-server": "state", "laggard.telemetry.server": "telemetry", "ray::RuntimeEnvAgent": "runtime-env"}
    return next((kind for word, kind in known.items() if word in command), f"ray: {process.name()}")


def other_user(by: str, targets: dict[str, Any], *arguments: str) -> dict[str, str]:
    """Return the outcome of each attempt of another user."""
    # Without the variables that the tests run with, so that they pass on no secret.
    environment = {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "VIRTUAL_ENV") if name in os.environ}
    done = subprocess.run(
        [sys.executable, "-m", "tests.integration.other_user", *arguments],
        input=json.dumps({"by": by, **targets}),
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
        env=environment,
        text=True,
        timeout=DEADLINE_S,
        check=True,
    )
    outcomes: dict[str, str] = json.loads(done.stdout)
    return outcomes


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    directory = tmp_path_factory.mktemp("job")
    (directory / "program.py").write_text("\n".join(line[4:] for line in WORK.splitlines()))
    with tempfile.TemporaryDirectory(prefix="lt-", dir="/tmp") as runtime_root:
        Path(runtime_root).chmod(0o755)  # what protects the job must be the job's own folders
        options = ("--local-nodes=2", "--virtual-gpus=1", "--telemetry-level=4")
        running = RunningJob(directory, runtime_root, *options, "program.py")
        try:
            running.wait_for("working")
            port = int(running.wait_for(r"http://127\.0\.0\.1:(\d+)")[1])
            wait_until(lambda: "gpu-probe-time" in metrics_of(port), running.everything)  # all that listens is up
            environment = running.process_of("node1", "raylet/raylet").environ()
            endpoint_file = Path(environment["LAGGARD_ENDPOINT_FILE"])
            command = psutil.Process(running.process.pid)
            processes = [command, *command.children(recursive=True)]
            listening: dict[tuple[str, int], str] = {}
            for ports in seen_of(processes, listening_of):
                listening.update(ports)
            yield Job(running, Endpoint.load(endpoint_file), endpoint_file.parent, processes, listening)
            running.process.send_signal(signal.SIGTERM)
            running.finish()
        finally:
            running.end()


def test_another_user_can_access_no_file_socket_or_process(job: Job) -> None:
    outcomes = other_user("permission", job.targets())
    print_table(outcomes)
    assert set(outcomes.values()) == {REFUSED}, outcomes


def test_the_same_attempts_succeed_for_the_owner(job: Job) -> None:
    """Otherwise the test above would pass for the wrong reason."""
    outcomes = other_user("permission", job.targets(), "--as-owner")
    outcomes.pop("read what is in /dev/shm")  # Ray's is without a name
    assert all(outcome.startswith("got in") for outcome in outcomes.values()), outcomes


def test_another_user_gets_no_answer_without_a_secret(job: Job) -> None:
    outcomes = other_user("secret", job.targets())
    print_table(outcomes)
    assert set(outcomes.values()) == {REFUSED}, outcomes


def test_only_ray_listens_beyond_loopback_and_it_demands_a_certificate(job: Job) -> None:
    certified = trusting_anybody()
    certified.load_cert_chain(job.node_directory / "ray.crt", job.node_directory / "ray.key")
    parts = set()
    for (host, port), what in job.listening.items():
        if what.startswith("ray"):
            greet((host, port), certified)  # the job's own certificate is let in
            parts.add(what)
        else:
            assert ip_address(host).is_loopback, f"{what} listens at {host}:{port}"
    assert {"ray: gcs_server", "ray: raylet"} < parts
    assert set(job.listening.values()) - parts == {"state", "telemetry", "runtime-env"}


def test_a_certificate_of_the_job_alone_does_not_make_a_ray_driver(job: Job) -> None:
    names = {"CERT": "ray.crt", "KEY": "ray.key", "CA": "ray-authority.crt"}
    program = """
import sys
from laggard.resilience.ray.private_api import ping_head
ping_head(sys.argv[1], timeout_s=5)
"""
    variables = {
        **{f"RAY_TLS_{'CA_CERT' if name == 'CA' else 'SERVER_' + name}": name for name in names},
        "RAY_USE_TLS": "1",
    }
    variables |= {key: str(job.node_directory / names[value]) for key, value in variables.items() if value in names}
    address = job.running.process_of("node1", "raylet/raylet").environ()["RAY_ADDRESS"]
    command = [sys.executable, "-c", program, address]
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(job.node_directory / "ray-token")}
    for extra, expected in (({"RAY_AUTH_MODE": "disabled"}, "InvalidAuthToken"), (token, "")):
        done = subprocess.run(
            command, env={**os.environ, **variables, **extra}, capture_output=True, text=True, timeout=DEADLINE_S
        )
        assert (done.returncode == 0) == (not expected), done.stderr
        assert expected in done.stderr


def test_no_secret_is_in_a_command_line_a_log_or_an_environment(job: Job) -> None:
    files = ("ray-token", "telemetry-token", "ray.key")
    secrets = [(job.node_directory / name).read_text().strip() for name in files] + [job.endpoint.password]
    assert all(len(secret) >= 32 for secret in secrets)
    seen = seen_of(job.processes, lambda each: " ".join([*each.cmdline(), *each.environ().values()]))
    seen += [path.read_text(errors="replace") for path in job.node_directory.parent.rglob("*.log")]
    seen.append(job.running.everything())
    assert [secret for secret in secrets if any(secret in text for text in seen)] == []


def test_reading_telemetry_needs_the_token_if_the_settings_say_so(state_server: StateServer, tmp_path: Path) -> None:
    with serve(state_server, tmp_path, settings="reading_needs_token: true\n") as served:
        shown = {"X-Laggard-Token": served.token}
        reading = ("/api/suggest?type=metrics", "/metrics", "/api/aggregators", "/page/job?start=0&end=1")
        assert {served.request(path)[0] for path in reading} == {401}
        assert {served.request(path, headers=shown)[0] for path in reading} == {200}
        assert served.request("/health")[0] == 200


def print_table(outcomes: dict[str, str]) -> None:
    width = max(map(len, outcomes))
    print(*(f"{name:{width}}  {outcome}" for name, outcome in outcomes.items()), sep="\n")
