"""Where State is: on a server that ``laggard run`` starts, or on one of the site's; and what the site remembers."""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from laggard.kvstore.client.connection import Endpoint, is_loopback
from laggard.kvstore.errors import PortTakenError
from laggard.kvstore.server.site import NO_JOB, endpoint_of
from laggard.resilience.command.options import JobOptions
from laggard.resilience.controller.site_state import SiteState
from laggard.resilience.controller.state_keeper import StateKeeper
from laggard.resilience.controller.state_server_supervisor import StateSupervisor
from laggard.resilience.errors import UsageError
from laggard.resilience.record.account import Account
from laggard.resilience.record.history_folder import HistoryFolder
from laggard.resilience.record.history_server import HistoryServer
from laggard.resilience.record.node_history import NodeHistory

LOOPBACK = "127.0.0.1"
PASSWORD_VARIABLE = "LAGGARD_STATE_PASSWORD"  # noqa: S105 - a variable's name
_UNENCRYPTED = "State and its password cross the network unencrypted"


@dataclass(frozen=True, slots=True)
class SiteAccess:
    """What it takes to use the site's server."""

    password: str = field(repr=False)
    authority: str  # certificate that the server's is verified against, as PEM text; empty: those of this machine


def site_access(options: JobOptions, environ: MutableMapping[str, str]) -> SiteAccess:
    """Read it, and take the password out of the environment, which the program inherits."""
    in_environment, file, authority = environ.pop(PASSWORD_VARIABLE, ""), options.state_password_file, options.state_ca
    return SiteAccess(
        in_environment if file is None else _private_text(file),
        "" if authority is None else _text("--state-ca", authority),
    )


def site_endpoint(options: JobOptions, access: SiteAccess, job: str, primary: str) -> Endpoint | None:
    """Return where the site's server is; None: we start one."""
    if options.state_server is None:
        return None
    site = endpoint_of(
        options.state_server, job, access.password, authority=access.authority, replicas=options.state_replicas
    )
    if is_loopback(site.host) and not is_loopback(primary):
        given = f"--state-server={options.state_server}"
        raise UsageError(given, "is this machine's alone", "name an address that all nodes can reach")
    return site


def node_history(options: JobOptions, access: SiteAccess) -> NodeHistory | None:
    """Return what the site remembers of its nodes; None if nothing."""
    if options.node_history is None:
        return None
    if (folder := options.history_folder()) is not None:
        return NodeHistory(HistoryFolder(folder))
    endpoint = endpoint_of(options.node_history, NO_JOB, access.password, authority=access.authority)
    if endpoint.exposed:
        given = f"--node-history={options.node_history}"
        raise UsageError(given, "would send its password unencrypted", "write rediss://")
    return NodeHistory(HistoryServer(endpoint))


def state_keeper(
    options: JobOptions, site: Endpoint | None, directory: Path, job: str, address: str, account: Account
) -> StateKeeper:
    """Return what keeps the job's State, once it can be used."""
    if site is not None:
        return SiteState(
            site,
            in_memory=options.state_in_memory,
            on_wait=lambda who: account.tell("state", f"{who} holds the job: waits to see whether that is still there"),
        )
    try:
        return StateSupervisor(
            directory,
            job=job,
            host=LOOPBACK if is_loopback(address) else address,
            port=options.state_port,
            on_loading=partial(account.tell, "state"),
        )
    except PortTakenError as taken:
        raise UsageError(
            f"port {taken.port} for the state server is taken: name another with --state-port, or leave it out"
        ) from taken


def tell_where(keeper: StateKeeper, site: Endpoint | None, directory: Path, account: Account) -> None:
    """Tell the user where State is."""
    where = f"its files in {directory}" if site is None else f"keys {site.key('*')}"
    account.tell("state", f"server at {keeper.endpoint.address}, {where}")
    if keeper.endpoint.exposed:
        own = "set LAGGARD_STATE_SERVER to a redis-server or valkey-server with TLS"
        advice = own if site is None else "use a --state-server that begins with rediss://"
        account.tell("warning", f"{_UNENCRYPTED}: {advice}", "bold yellow")


def _private_text(file: Path) -> str:
    text = _text("--state-password-file", file)
    if file.stat().st_mode & 0o007:
        advice = f"run `chmod 600 {file}`"
        raise UsageError(f"--state-password-file={file}", "can be opened by other users", advice)
    return text


def _text(flag: str, file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{flag}={file}", "cannot be read", str(error)) from error
