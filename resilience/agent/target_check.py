"""``python -m laggard.resilience.agent.target_check``: whether what a failed program named answers, from this node.

It waits for its agent's own command (:class:`laggard.resilience.wire.checks.AskTargets`) on its standard input. Each
target is asked in a thread of its own, and none is waited for longer than `LIMIT_S`: a name server takes its time to
fail, and a thread in a dead file system never returns.
"""

from __future__ import annotations

import errno
import http.client
import os
import socket
import ssl
import stat
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from laggard.resilience.agent.mounts import is_network_mount, network_mounts
from laggard.resilience.reading.targets import NoAnswer, Target
from laggard.resilience.wire import decode, encode
from laggard.resilience.wire.checks import AskTargets, TargetsAsked

# The first of two name servers may be away: then each name takes five seconds.
LIMIT_S = 15.0
CONNECT_S = 4.0
# A name that cannot exist: a name server that answers says so.
_NO_NAME = "laggard.invalid"
_NO_HEAD = (405, 501)
# Answers for "later": with one of these a server, or the proxy before it, does not count as answering.
_BUSY = (429, 502, 503, 504)
_AWAY = (errno.ENOTCONN, errno.ETIMEDOUT, errno.EHOSTDOWN, errno.EREMOTEIO)


def main(asked: AskTargets) -> None:
    """Print for each target why it does not answer, or null."""
    # A connection has a limit of its own, so that it is the name that takes longer.
    late: Mapping[str, NoAnswer] = dict.fromkeys(("name", "port"), NoAnswer("not resolved"))
    answers: list[NoAnswer | None] = [late.get(target.kind, NoAnswer("timed out")) for target in asked.targets]

    def ask(at: int, target: Target) -> None:
        answers[at] = no_answer(target, asked.own)

    threads = [threading.Thread(target=ask, args=each, daemon=True) for each in enumerate(asked.targets)]
    for thread in threads:
        thread.start()
    until_s = time.monotonic() + LIMIT_S
    for thread in threads:
        thread.join(max(0.0, until_s - time.monotonic()))
    sys.stdout.buffer.write(encode(TargetsAsked(asked.number, tuple(answers))))
    sys.stdout.buffer.flush()
    os.close(sys.stdout.fileno())  # a thread that is held in the kernel keeps it open otherwise
    os._exit(0)


def no_answer(target: Target, own: Collection[str] = ()) -> NoAnswer | None:
    """Return why a target does not answer; None if it does, or if it is a node of the job."""
    try:
        if target.kind not in ("path", "mount") and set(_resolved(target)) & {*own}:
            return None
        return _ASKS[target.kind](target)
    except socket.gaierror as error:
        # A name server that says that there is no such name does answer, but not what the program needs.
        return NoAnswer("not resolved") if target.host or error.errno == socket.EAI_AGAIN else None
    except ConnectionRefusedError:
        return NoAnswer("refused")
    except TimeoutError:
        return NoAnswer("timed out")
    except (ConnectionError, http.client.RemoteDisconnected):
        return NoAnswer("closed")
    except OSError:
        return NoAnswer("unreachable")


def _resolved(target: Target) -> list[str]:
    if target.kind == "url" and _proxy_of(target):
        return []  # the proxy resolves it
    return [str(info[4][0]) for info in socket.getaddrinfo(target.host or _NO_NAME, target.port or None)]


def _proxy_of(target: Target) -> bool:
    scheme = target.of.partition(":")[0]
    return scheme in urllib.request.getproxies() and not urllib.request.proxy_bypass(target.host)


def _ask_port(target: Target) -> None:
    socket.create_connection((target.host, target.port), CONNECT_S).close()


def _ask_url(target: Target) -> NoAnswer | None:
    status = _status(target.of, "HEAD")
    if status in _NO_HEAD:
        status = _status(target.of, "GET")
    return NoAnswer("HTTP", status) if status in _BUSY else None


def _status(url: str, method: str) -> int:
    """Return the status of an answer; 200 for one that is no HTTP: somebody is there."""
    request = urllib.request.Request(url, method=method, headers={"User-Agent": "laggard"})  # noqa: S310 - http or https
    try:
        with urllib.request.urlopen(request, timeout=CONNECT_S) as response:  # noqa: S310
            return int(response.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code
    except urllib.error.URLError as error:
        if isinstance(error.reason, OSError) and not isinstance(error.reason, ssl.SSLError):
            raise error.reason from error
        return 200
    except http.client.RemoteDisconnected:
        raise
    except (http.client.HTTPException, ValueError):
        return 200


def _ask_path(target: Target) -> NoAnswer | None:
    try:
        state = Path(target.of).stat()
        os.statvfs(target.of)
        if stat.S_ISREG(state.st_mode):
            with open(target.of, "rb", buffering=0) as file:  # noqa: PTH123 - one byte, not through a buffer
                file.read(1)
        elif stat.S_ISDIR(state.st_mode):
            with os.scandir(target.of) as entries:
                next(entries, None)
    except (FileNotFoundError, NotADirectoryError):
        return NoAnswer("missing") if _is_unmounted(Path(target.of)) else None
    except OSError as error:
        if error.errno == errno.ESTALE:
            return NoAnswer("stale")
        # A disk of the node's own that fails is no outage.
        away = error.errno in _AWAY or (error.errno == errno.EIO and is_network_mount(target.of))
        return NoAnswer("failing") if away else None
    return None


def _is_unmounted(path: Path) -> bool:
    """Return whether the nearest folder above that exists is empty, as that of a mount which is away."""
    above = next(each for each in path.absolute().parents if each.is_dir())
    return next(above.iterdir(), None) is None


def _ask_mount(target: Target) -> NoAnswer | None:
    if why := _ask_path(target):  # which mounts it, where that is done at the first use
        return why
    return None if target.of in network_mounts() else NoAnswer("missing")


_ASKS: Mapping[str, Callable[[Target], NoAnswer | None]] = {
    "name": lambda _: None,  # it was resolved
    "port": _ask_port,
    "url": _ask_url,
    "path": _ask_path,
    "mount": _ask_mount,
}


if __name__ == "__main__" and (_question := sys.stdin.buffer.readline()):  # empty if the agent has ended
    main(decode(_question, AskTargets))
