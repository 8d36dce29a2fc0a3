"""What the last words of a failed process name that may not answer: hosts, ports, URLs and paths. Pure.

To be named is not to be away: each target is asked (:mod:`laggard.resilience.agent.target_check`), and what answers is
no outage. So these patterns may find too much, but not what the program never wanted to reach.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

from laggard.resilience.reading.prefixes import clean_line
from laggard.resilience.reading.reading import BEGIN

TargetKind = Literal["name", "port", "url", "path", "mount"]
Trouble = Literal[
    "not resolved", "refused", "unreachable", "timed out", "closed", "HTTP", "stale", "missing", "failing"
]

MAX_TARGETS = 4
LAST_LINES = 30  # without a traceback; with one, all from it on
# Of a file system elsewhere: away, or its server gone. The first two happen on a node's own disk too.
_PATH_ERRORS = (
    *(errno.ENOENT, errno.EIO, errno.ENOTCONN, errno.ETIMEDOUT, errno.EHOSTDOWN, errno.ESTALE, errno.EREMOTEIO),
)
MAX_PORT = 65535
PYTORCHS_PORT = 29500  # where ranks of one machine meet, unless they are told otherwise

_UNRESOLVED = r"resol|not known|lookup|gai ?error|getaddrinfo|nodename nor|translate host|unknownhost|no such host"
_IS_UNRESOLVED = re.compile(rf"(?i){_UNRESOLVED}|no address associated")
_NETWORK = re.compile(
    rf"(?i){_UNRESOLVED}|refused|time[d-]?[ -]?out|unreachable|no route to host|network is down|max retries|"
    r"connect(?!ion closed)|unavailable|temporar|too many requests|bad gateway|endpoint url|\b(429|50[234])\b"
)
_NAME_SERVER = re.compile(r"(?i)Temporary failure in name resolution|\[Errno -3\]")
_NAME = r"[A-Za-z][\w.-]*\w|\d+(?:\.\d+){3}"
_NAME_OR_IPV6 = rf"{_NAME}|[0-9a-f]*:[0-9a-f:.]+"
_POOL = re.compile(r"(HTTPS?)ConnectionPool\(host=['\"]([^'\"]+)['\"], port=(\d+)\)(?:.*?with url: (/[^\s?)]*))?")
_URL = re.compile(r"(?i)\b([a-z][a-z0-9+.-]{1,20})://[^\s'\"<>()\[\]{},`]+")
# An address for people, which no program waits for; and without the internet nothing answers there, ever.
_DOCUMENTS = re.compile(r"(?i)://docs\.|\.docs\.|/(docs?|documentation|issues|wiki|blob)\b|\.html?\b")
_TUPLE = re.compile(rf"(?i)\(\\?['\"]?({_NAME_OR_IPV6})\\?['\"]?, ?(\d{{1,5}})[,)]")
# "timeout:30" is no host: a name without a dot needs a word before it that says so. "train.py:30" is none either.
_IS_HOST = r"(?<![\w./@-])(?=localhost|[\w-]+\.)|(?:\b(?:to|host|connecting|from|at|on|for|tcp|server)|:/)[ :/]+['\"(]?"
_IS_FILE = r"\S+\.(?:py|pyx|cpp|cc|c|cu|cuh|h|hpp|go|rs|java|kt|f90|f|jl|sh|log|txt|json|ya?ml):"
_PORTS = (
    _TUPLE,
    re.compile(rf"['\"]?\b({_NAME})['\"]?(?: \([^)\s]*\))?,? port:? (\d{{1,5}})\b"),
    re.compile(rf"(?i)\[({_NAME_OR_IPV6})\]:(\d{{1,5}})\b"),
    re.compile(rf"(?i)(?:{_IS_HOST})(?!{_IS_FILE})({_NAME}):(\d{{1,5}})\b(?![.:]?\d)"),
)
_NAMED = re.compile(
    r"(?i)(?:\bhost(?: ?name| address)?|UnknownHostException|resolution failed for|lookup|resolve):? ['\"\u2018\u201c]?"
    rf"(?!(?:address|name|the|host\w*|by|for|is|not|to|was)\b)({_NAME})(?=['\"\u2019\u201d:\s]|$)"
)
_PATHS = (
    re.compile(r"\[Errno (?P<errno>\d+)\] [^:'\"]*: b?(?P<quote>['\"])(?P<path>.+?)(?P=quote)"),
    re.compile(r"(?:^|[\s'\"\u2018])(?P<path>/[^\s:'\"\u2019]+)['\"\u2019]?: (?P<words>[A-Z][a-z/]+(?: [a-z/]+)+)"),
)
_WORDS = {os.strerror(each): each for each in _PATH_ERRORS}
_CHAINED = "above exception"


@dataclass(frozen=True, slots=True)
class Target:
    """Something that a program may wait for.

    Attributes
    ----------
    kind
        ``name``: to be resolved (empty: the name server, whatever the name); ``port``: a TCP port; ``url``: an HTTP
        address; ``path``: a file or folder; ``mount``: where a file system of the network is mounted.
    host, port
        Where it is; empty and 0 if the kind has none.
    of
        The URL, without a user, a password or a query, which may be secret; or the path or mount.
    """

    kind: TargetKind
    host: str = ""
    port: int = 0
    of: str = ""

    @property
    def is_local(self) -> bool:
        """Whether it is on the very node, where the program itself may be what serves it."""
        return self.host.lower() == "localhost" or self.host == "::1" or self.host.startswith("127.")


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """Why a target does not count as answering; ``status`` is that of HTTP."""

    kind: Trouble
    status: int = 0


@dataclass(frozen=True, slots=True)
class Unanswered:
    """Something that a failed program needs and that does not answer."""

    target: Target
    why: NoAnswer
    host: str  # the node that asked
    since_s: float  # Unix time since which that is known


def targets_in(lines: Sequence[str], own: Collection[str] = (), own_ports: Collection[int] = ()) -> tuple[Target, ...]:
    """Return what the last lines of a failed process name, best first.

    Parameters
    ----------
    lines
        The end of its standard error.
    own
        Names and addresses of the job's own nodes: a peer that does not answer is no outage.
    own_ports
        Ports at which the launch's ranks meet, wherever they are.
    """
    episode = _episode([clean_line(line) for line in lines])
    said = [line for line in episode if not line.startswith("  ")]  # else it is a frame or its code
    nodes = {each.lower() for each in own}

    def is_own(target: Target) -> bool:
        return target.host.lower() in nodes or (target.is_local and target.port in (*own_ports, PYTORCHS_PORT))

    # The last line counts that names anything, so that all of it are addresses of one thing.
    named = (tuple(dict.fromkeys(_in_line(line, is_own))) for line in reversed(said))
    if found := next(filter(None, named), ()):
        return found[:MAX_TARGETS]
    if any(map(_NAME_SERVER.search, said)):
        return (Target("name"),)
    code = (line for line in reversed(episode) if line.startswith("  "))
    in_code = (tuple(each for each in _in_code(line) if not is_own(each)) for line in code)
    return next(filter(None, in_code), ())[:MAX_TARGETS] if any(map(_NETWORK.search, said[-1:])) else ()


def _episode(lines: Sequence[str]) -> Sequence[str]:
    """Return the lines from the last traceback on, with those that led to it; the very last ones without any."""
    begins = [at for at, line in enumerate(lines) if line.startswith(BEGIN)]
    if not begins:
        return lines[-LAST_LINES:]
    begin = begins.pop()
    while begins and any(_CHAINED in line for line in lines[begins[-1] : begin]):
        begin = begins.pop()
    return lines[begin:]


def _in_line(line: str, is_own: Callable[[Target], bool]) -> Iterator[Target]:
    yield from _paths(line)
    if not _NETWORK.search(line):
        return
    endpoints = list(_endpoints(line))
    yield from (others := [target for target in endpoints if not is_own(target)])
    if not others and _IS_UNRESOLVED.search(line):
        # That the name of a node of the job is not resolved is no matter of that node's.
        hosts = [target.host for target in endpoints] or [match[1] for match in _NAMED.finditer(line)]
        yield from (Target("name", host) for host in hosts if host[0].isalpha() and ":" not in host)


def _endpoints(line: str) -> Iterator[Target]:
    for match in _POOL.finditer(line):
        yield from _of_url(f"{match[1].lower()}://{match[2]}:{match[3]}{match[4] or '/'}")
    yield from _urls(line)
    rest = _URL.sub(" ", _POOL.sub(" ", line))
    for pattern in _PORTS:
        yield from _ports(pattern, rest)
        rest = pattern.sub(" ", rest)


def _urls(line: str) -> Iterator[Target]:
    for match in _URL.finditer(line):
        if not _DOCUMENTS.search(match[0]):
            yield from _of_url(match[0].rstrip(".:;"))


def _of_url(url: str) -> Iterator[Target]:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:  # a port that is none, or half an address in brackets
        return
    if not host:
        return
    if parts.scheme in ("http", "https"):
        port = port or (443 if parts.scheme == "https" else 80)
        place = f"[{host}]" if ":" in host else host
        yield Target("url", host, port, f"{parts.scheme}://{place}:{port}{parts.path or '/'}")
    elif port:
        yield Target("port", host, port)


def _ports(pattern: re.Pattern[str], line: str) -> Iterator[Target]:
    for match in pattern.finditer(line):
        if 0 < int(match[2]) <= MAX_PORT:
            yield Target("port", match[1], int(match[2]))


def _paths(line: str) -> Iterator[Target]:
    for pattern in _PATHS:
        for match in pattern.finditer(line):
            of = match.groupdict()
            number = int(of["errno"]) if "errno" in of else _WORDS.get(of["words"])
            if number in _PATH_ERRORS:
                yield Target("path", of=of["path"])


def _in_code(line: str) -> Iterator[Target]:
    """Yield the literals of a line of code, as in ``create_connection(("db.site", 5432))``."""
    yield from _ports(_TUPLE, line)
    if "{" not in line:
        yield from _urls(line)
