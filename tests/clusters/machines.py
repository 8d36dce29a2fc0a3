"""Simulated machines: each has its own network, host name, processes and private folder; files are shared.

Everything on a machine is a child of a process that holds the machine's namespaces. When that is killed, the kernel
ends everything there at once, as in a power failure.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import psutil

from tests.processes import command_line, is_alive
from tests.waiting import wait_until

__all__ = ["PRIVATE", "Machine", "Network", "missing_for_machines", "wait_for"]

DEADLINE_S = 60.0
SUBNET = "10.78.0"
PRIVATE = "/mnt"  # private to each machine

# The first process of a machine reaps the others, and does nothing else.
_INIT = """
import signal, sys
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
print("up", flush=True)
while True:
    signal.pause()
"""


def missing_for_machines(*programs: str) -> str | None:
    """Return why machines with these programs cannot be created here; None if they can."""
    if os.geteuid() != 0:
        return "needs root to make network namespaces"
    for program in ("ip", "setpriv", "unshare", "nsenter", "mount", *programs):
        if shutil.which(program) is None:
            return f"needs {program}"
    tried = subprocess.run(["unshare", "--net", "--uts", "--mount", "--pid", "--fork", "true"], capture_output=True)
    return None if tried.returncode == 0 else f"no namespaces here: {tried.stderr.decode().strip()}"


def wait_for(done: Callable[[], bool], what: str, deadline_s: float = DEADLINE_S) -> None:
    """Poll until something holds."""
    wait_until(done, lambda: f"{what} did not come within {deadline_s:g} s", deadline_s)


class Machine:
    """One machine, running from its construction on."""

    def __init__(self, name: str, address: str, hosts: Path) -> None:
        self.name = name
        self.address = address
        # the machine ends with us, however we end
        unshare = [
            "setpriv",
            "--pdeathsig=KILL",
            "unshare",
            "--net",
            "--uts",
            "--mount",
            "--pid",
            "--fork",
            "--mount-proc",
            "--kill-child",
        ]
        self._holder = subprocess.Popen(
            [*unshare, sys.executable, "-I", "-S", "-c", _INIT],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert self._holder.stdout is not None
        assert self._holder.stdout.readline() == b"up\n"
        (self._init,) = psutil.Process(self._holder.pid).children()
        self.run("hostname", self.name)
        self.run("mount", "--bind", str(hosts), "/etc/hosts")
        self.run("mount", "-t", "tmpfs", "tmpfs", PRIVATE)
        self.ip("link", "set", "lo", "up")

    def plug_in(self, switch: Machine) -> None:
        """Connect the machine to a switch's bridge."""
        here, there = "eth0", f"to-{self.name}"
        switch.ip("link", "add", there, "type", "veth", "peer", "name", here, "netns", str(self._init.pid))
        switch.ip("link", "set", there, "master", "br0", "up")
        # a machine that replaces a crashed one has its card, so that the others find it at once
        self.ip("link", "set", here, "address", _card(self.address))
        self.ip("addr", "add", f"{self.address}/24", "dev", here)
        self.ip("link", "set", here, "up")

    def ip(self, *argv: str) -> None:
        """Change the machine's network, with commands that run on the host."""
        command = ["nsenter", f"--target={self._init.pid}", "--net", "ip", *argv]
        subprocess.run(command, check=True, timeout=DEADLINE_S)

    def cap(self, interface: str, rate: str) -> None:
        """Let an interface of the machine send no faster than a rate, such as ``100mbit``."""
        limit = ["root", "tbf", "rate", rate, "burst", "64kb", "latency", "50ms"]
        command = ["nsenter", f"--target={self._init.pid}", "--net", "tc", "qdisc", "replace", "dev", interface, *limit]
        subprocess.run(command, check=True, timeout=DEADLINE_S)

    def command(self, *argv: str) -> list[str]:
        """Return the command that runs ``argv`` on this machine."""
        return ["nsenter", f"--target={self._init.pid}", "--net", "--uts", "--mount", "--pid", *argv]

    def run(self, *argv: str, environment: Mapping[str, str] | None = None, check: bool = True) -> str:
        """Run a command on this machine and return its output."""
        done = subprocess.run(self.command(*argv), capture_output=True, text=True, timeout=DEADLINE_S, env=environment)
        assert not check or done.returncode == 0, f"{argv} on {self.name}: {done.stderr}"
        return done.stdout

    def start(
        self,
        *argv: str,
        output: IO[Any] | int,
        keyboard: int = subprocess.DEVNULL,
        cwd: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> subprocess.Popen[bytes]:
        """Start a command on this machine; the process returned is ``nsenter``, which ends with the command."""
        there = argv if cwd is None else ("env", f"--chdir={cwd}", *argv)  # a mount namespace is entered at its root
        return subprocess.Popen(
            self.command(*there),
            stdin=keyboard,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )

    @contextlib.contextmanager
    def as_here(self) -> Iterator[None]:
        """Have this thread's new sockets belong to this machine, until the end of the block."""
        libc = ctypes.CDLL(None, use_errno=True)
        with open("/proc/self/ns/net") as ours, open(f"/proc/{self._init.pid}/ns/net") as its:  # noqa: PTH123
            assert libc.setns(its.fileno(), 0) == 0, os.strerror(ctypes.get_errno())
            try:
                yield
            finally:
                assert libc.setns(ours.fileno(), 0) == 0, os.strerror(ctypes.get_errno())

    def processes(self) -> list[psutil.Process]:
        """Return what runs on this machine, except its first process."""
        ours = _namespace_of(self._init.pid)
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(OSError, psutil.NoSuchProcess):
                if _namespace_of(process.pid) == ours and process != self._init:
                    found.append(process)
        return [process for process in found if is_alive(process)]

    def process(self, words: str) -> psutil.Process:
        """Return the process of this machine that has these words in its command line."""
        found = next((process for process in self.processes() if words in command_line(process)), None)
        assert found is not None, f"no {words} on {self.name}"
        return found

    def has_crashed(self) -> bool:
        """Whether the power is off."""
        return self._holder.poll() is not None

    def crash(self) -> None:
        """Cut the power."""
        self._init.kill()
        self._holder.wait(DEADLINE_S)

    def shut_down(self) -> None:
        """End the machine for good."""
        if not self.has_crashed():
            self.crash()
        if self._holder.stdout is not None:
            self._holder.stdout.close()


def _namespace_of(pid: int) -> str:
    return str(Path(f"/proc/{pid}/ns/pid").readlink())


def _card(address: str) -> str:
    """Return the hardware address of the card with this address."""
    return "02:00:" + ":".join(f"{int(octet):02x}" for octet in address.split("."))


class Network:
    """A login machine, and some nodes that are all connected to it."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        addresses = {name: f"{SUBNET}.{number}" for number, name in enumerate(names, 1)}
        login = f"{SUBNET}.100"
        hosts = folder / "hosts"
        self._hosts = hosts
        lines = ["127.0.0.1 localhost", f"{login} login", *(f"{a} {name}" for name, a in addresses.items())]
        hosts.write_text("\n".join(lines) + "\n")
        self.login = Machine("login", login, hosts)
        # With a card of its own, or it takes one of its ports', and another one when that port is replaced
        self.login.ip("link", "add", "br0", "address", _card(login), "type", "bridge")
        self.login.ip("addr", "add", f"{login}/24", "dev", "br0")
        self.login.ip("link", "set", "br0", "up")
        self.nodes: dict[str, Machine] = {}
        for name, address in addresses.items():
            self._boot(name, address)

    def _boot(self, name: str, address: str) -> None:
        self.nodes[name] = Machine(name, address, self._hosts)
        self.nodes[name].plug_in(self.login)

    def replace(self, name: str) -> None:
        """Replace a machine that has crashed by a new one."""
        crashed = self.nodes[name]
        crashed.shut_down()
        # Its cable goes with its network, which the kernel takes down in its own time.
        self.login.run("ip", "link", "delete", f"to-{name}", check=False)
        self._boot(name, crashed.address)

    def cap(self, name: str, *, send: str | None = None, receive: str | None = None) -> None:
        """Cap the rate at which a node sends, and that at which the switch sends to it."""
        if send is not None:
            self.nodes[name].cap("eth0", send)
        if receive is not None:
            self.login.cap(f"to-{name}", receive)

    def cut(self, name: str) -> None:
        """Pull a node's cable."""
        self.login.ip("link", "set", f"to-{name}", "down")

    def mend(self, name: str) -> None:
        """Plug it in again."""
        self.login.ip("link", "set", f"to-{name}", "up")

    def shut_down(self) -> None:
        """End all machines."""
        for machine in (*self.nodes.values(), self.login):
            machine.shut_down()
