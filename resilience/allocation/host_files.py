"""Hosts as people, PBS and LSF list them: on the command line, in files, in variables. Pure, but for reading files.

A host is written as ``[ssh://][user@]host[:port]``, and ``host`` may have ranges, or be an address, one of IPv6 in
brackets where a port follows. What only says how many processes a
host should have is skipped, since each host is one node: further words of a line (``slots=8``, ``max_slots=8``, ``8``),
MPICH's ``host:8``, and repetitions of a host. Open MPI's and MPICH's ``username=`` and ``user=`` say as whom to log in.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv6Address
from pathlib import Path

from laggard.resilience.allocation.node_lists import expand_node_list, split_list
from laggard.resilience.errors import UsageError

# A number behind a host without a user is MPICH's number of processes; no host has more than this.
MAX_PROCESSES = 1024
MAX_PORT = 65535
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_ENTRY = re.compile(r"(ssh://)?(?:([^@\s]*)@)?([^@:\s]*)(?::(\d+))?/?")
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._\\-]*")
_IPV6 = re.compile(r"((?:ssh://)?(?:[^@\s]*@)?)\[?([0-9A-Fa-f]*:[0-9A-Fa-f]*:[0-9A-Fa-f:.]*(?:%\w+)?)\]?((?::\d+)?/?)")
# What may follow a host on its line: settings of Open MPI and MPICH, or a number (LSF, and SGE with more behind it).
_REST = re.compile(r"(\s+[\w-]+\s*=\s*\S+)*\s*|\s+\d+(\s.*)?")
_USER_OF_LINE = re.compile(r"\suser(?:name)?\s*=\s*(\S+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Host:
    """A host, and how to log in there if ssh's configuration should not say so."""

    name: str
    user: str | None = None  # as whom and where to log in; `None`: as ssh's configuration says
    port: int | None = None


def named_hosts(hostlist: str | None, hostfile: Path | None) -> tuple[Host, ...]:
    """Return the hosts of ``--hostlist`` or ``--hostfile``, in order."""
    if hostlist is not None and hostfile is not None:
        given = f"--hostlist={hostlist} and --hostfile={hostfile}"
        raise UsageError(given, "cannot be combined", "leave one out")
    if hostfile is not None:
        return _read_host_file(hostfile, f"--hostfile={hostfile}")
    named = [host for entry in split_list(hostlist or "") for host in _hosts_of(entry)]
    for name, count in Counter(host.name for host in named).items():
        if count > 1:
            raise UsageError(f"host {name}", "is named twice", "each host is one node")
    return _some(named)


def _read_host_file(path: Path, subject: str) -> tuple[Host, ...]:
    """Return the hosts of a file, in order, each once."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = str(getattr(error, "strerror", None) or error)
        raise UsageError(subject, "cannot be read", reason) from error
    return parse_hosts(text.splitlines(), subject)


def parse_hosts(lines: Iterable[str], subject: str) -> tuple[Host, ...]:
    """Return the hosts of the lines of a host file, in order, each once."""
    found: dict[str, Host] = {}
    for number, line in enumerate(lines, 1):
        try:
            for host in _hosts_of_line(line.partition("#")[0].strip()):
                _add(found, host)
        except UsageError as error:
            raise UsageError(f"{subject}, line {number}: {error.subject}", error.problem, error.fix) from None
    return _some(list(found.values()))


def _add(found: dict[str, Host], host: Host) -> None:
    if found.setdefault(host.name, host) != host:
        raise UsageError(f"host {host.name}", "was named before with another user or port", "each host is one node")


def _hosts_of_line(line: str) -> Iterator[Host]:
    if not line:
        return
    entries, rest = _first_word(line)
    if not _REST.fullmatch(rest):
        raise UsageError(repr(rest.strip()), "follows a host", "name one host, or hosts with commas, on each line")
    of_line = _USER_OF_LINE.search(rest)
    for entry in split_list(entries):
        yield from _hosts_of(entry, of_line and of_line.group(1))


def _first_word(line: str) -> tuple[str, str]:
    """Return the hosts at the beginning of a line, which may have spaces behind their commas, and the rest."""
    match = re.match(r"[^\s,]+(?:\s*,\s*[^\s,]+)*", line)
    end = match.end() if match else len(line)
    return re.sub(r"\s*,\s*", ",", line[:end]), line[end:]


def _hosts_of(entry: str, user_of_line: str | None = None) -> Iterator[Host]:
    literal = _IPV6.fullmatch(entry)
    match = _ENTRY.fullmatch(entry if literal is None else f"{literal[1]}address{literal[3]}")
    if match is None:
        raise _not_valid(entry)
    scheme, user, names, number = match.groups()
    login = user_of_line if user is None else user
    if login is not None and not _USER.fullmatch(login):
        raise UsageError(repr(entry), "has no valid user", "write user@host")
    port = _port(entry, number, means_port=bool(scheme) or user is not None or literal is not None)
    for name in expand_node_list(names) if literal is None else [_ipv6(entry, literal[2])]:
        if literal is None and not _NAME.fullmatch(name):
            raise _not_valid(name)
        yield Host(name, login, port)
    if not names:
        raise _not_valid(entry)


def _ipv6(entry: str, text: str) -> str:
    """Return an IPv6 address as the system writes it."""
    try:
        if "%" not in text:
            return str(IPv6Address(text))
    except ValueError:
        pass
    raise UsageError(repr(entry), "is not an IPv6 address that other hosts can use", "write it as 2001:db8::7")


def _port(entry: str, number: str | None, *, means_port: bool) -> int | None:
    """Return the port that an entry names; behind a host alone a small number is MPICH's number of processes."""
    if number is None or (not means_port and 0 < int(number) <= MAX_PROCESSES):
        return None
    if not means_port:
        fix = f"write ssh://{entry} for a port, or slots={number}"
        raise UsageError(repr(entry), "may end with a port or with a number of processes", fix)
    if not 0 < int(number) <= MAX_PORT:
        raise UsageError(repr(entry), "has no valid port", f"use 1 to {MAX_PORT}")
    return int(number)


def _not_valid(entry: str) -> UsageError:
    rule = "use letters, digits, dots and dashes, as in node1, user@node1, user@node1:2222 or node[01-16]"
    return UsageError(repr(entry), "is not a valid host name", rule)


def _some(hosts: Sequence[Host]) -> tuple[Host, ...]:
    if not hosts:
        raise UsageError("no hosts", "are named", "give --hostlist=A,B or a --hostfile with one host per line")
    return tuple(hosts)


def hosts_of_pbs(environ: Mapping[str, str]) -> tuple[Host, ...]:
    """Return the hosts of the PBS job that we are in: a file has each of them once per process."""
    return _read_host_file(Path(environ["PBS_NODEFILE"]), f"PBS_NODEFILE={environ['PBS_NODEFILE']}")


def hosts_of_lsf(environ: Mapping[str, str]) -> tuple[Host, ...]:
    """Return the hosts of the LSF job that we are in."""
    # They are in a file, or in `LSB_MCPU_HOSTS` (`host1 8 host2 8`), or, if there are few, in `LSB_HOSTS` (`host1 host1
    # host2 host2`).
    if file := environ.get("LSB_DJOB_HOSTFILE"):
        return _read_host_file(Path(file), f"LSB_DJOB_HOSTFILE={file}")
    if counted := environ.get("LSB_MCPU_HOSTS", "").split():
        return parse_hosts(counted[::2], "LSB_MCPU_HOSTS")
    return parse_hosts(environ.get("LSB_HOSTS", "").split(), "LSB_HOSTS")
