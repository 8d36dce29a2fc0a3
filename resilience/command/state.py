"""Where ``laggard run`` keeps State: on a server that it starts, or on one of the site's."""

from __future__ import annotations

from collections.abc import MutableMapping
from functools import partial
from pathlib import Path

from laggard.kvstore.client.connection import Endpoint, is_loopback
from laggard.kvstore.errors import PortTakenError
from laggard.kvstore.server.site import endpoint_of
from laggard.resilience.command.options import JobOptions
from laggard.resilience.controller.site_state import SiteState
from laggard.resilience.controller.state_keeper import StateKeeper
from laggard.resilience.controller.state_server_supervisor import StateSupervisor
from laggard.resilience.errors import UsageError
from laggard.resilience.record.account import Account

LOOPBACK = "127.0.0.1"
PASSWORD_VARIABLE = "LAGGARD_STATE_PASSWORD"  # noqa: S105 - a variable's name
_UNENCRYPTED = "State and its password cross the network unencrypted"


def site_endpoint(options: JobOptions, job: str, primary: str, environ: MutableMapping[str, str]) -> Endpoint | None:
    """Return where the site's server is; None: we start one.

    The password is taken out of the environment, which the program inherits.
    """
    in_environment = environ.pop(PASSWORD_VARIABLE, "")
    if options.state_server is None:
        return None
    password, authority = in_environment, ""
    if options.state_password_file is not None:
        password = _private_text(options.state_password_file)
    if options.state_ca is not None:
        authority = _text("--state-ca", options.state_ca)
    site = endpoint_of(options.state_server, job, password, authority=authority, replicas=options.state_replicas)
    if is_loopback(site.host) and not is_loopback(primary):
        given = f"--state-server={options.state_server}"
        raise UsageError(given, "is this machine's alone", "name an address that all nodes can reach")
    return site


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
