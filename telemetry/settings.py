"""The telemetry settings: a YAML file with the keys that Dragon's users know, and some more."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, get_type_hints

import yaml

from laggard.kvstore.client.environment import JobEnvironment
from laggard.system.user import user_name
from laggard.telemetry.errors import SettingsError

TELEMETRY_CONFIG = "LAGGARD_TELEMETRY_CONFIG"
SETTINGS_FILE = "telemetry.yaml"
"""Name of the file beside a node's endpoint file in which the launcher passes on the settings."""

# Dragon's keys for things that do not exist here: each node's database server and its files. They are ignored.
_IGNORED = frozenset({"tsdb_server_port", "default_tmdb_dir", "default_tmdb_directory", "delete_tmdb"})


@dataclass(frozen=True, slots=True)
class TelemetrySettings:
    """The telemetry settings."""

    aggregator_port: int = 4242  # port of the HTTP server on the primary node, at its loopback address
    collector_rate: float = 0.5  # seconds between two readings of a node's metrics and its devices'
    default_tmdb_window: float = 300.0  # seconds for which each node keeps samples
    store_megabytes: int = 64  # limit on a node's samples; beyond it the oldest samples are dropped early
    # Limit on a node's summaries; beyond it the oldest of every second, then of ten seconds, are dropped early
    tiers_megabytes: int = 48
    primary_megabytes: int = 512  # limit on the summaries of all nodes, on the primary
    remote_port_forward: str = ""  # login node to name in the ssh command that is printed
    # Folder for dumps; if it is set, a dump is written when the job ends. By default dumps go to the folder in which
    # the job was started.
    dump_dir: str = ""
    dump_node: str = ""  # the only node that writes a dump, of all nodes; by default each writes its own
    dump_interval: float = 0.0  # seconds between two dumps; 0: only on request and when the job ends
    # Seconds that nodes have to answer a query; the answer comes without those that have not
    query_deadline: float = 1.5
    # Require the token for everything but `/health`, so that other users of the primary node cannot read
    reading_needs_token: bool = False
    # Further names, separated by commas, by which browsers and Grafana may reach the server, for example through a
    # proxy. Requests to other names are refused, whoever made them resolve to the server's address.
    server_names: str = ""

    def to_yaml(self) -> str:
        """Return the settings in the form that :func:`load_settings` reads."""
        return yaml.safe_dump(asdict(self))

    def tunnel_command(self, port: int) -> str:
        """Return the ssh command that forwards the server's port to the user's own machine."""
        jump = f"-J {self.remote_port_forward} " if self.remote_port_forward else ""
        return f"ssh {jump}-NL localhost:{port}:localhost:{port} {user_name()}@{socket.gethostname()}"


_BOUNDS: Mapping[str, tuple[float, float]] = {
    "aggregator_port": (1, 65535),
    "collector_rate": (0.05, 3600),
    "default_tmdb_window": (10, 7 * 86_400),
    "store_megabytes": (1, 1 << 20),
    "tiers_megabytes": (1, 1 << 20),
    "primary_megabytes": (1, 1 << 20),
    "dump_interval": (0, 7 * 86_400),
    "query_deadline": (0.1, 25),
}


def load_settings(path: Path) -> TelemetrySettings:
    """Read settings from a YAML file."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise SettingsError(str(path), f"cannot read it: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise SettingsError(str(path), f"cannot read it: {error}") from error
    return parse_settings(text, str(path))


def parse_settings(text: str, name: str) -> TelemetrySettings:
    """Read settings from YAML text; errors name ``name``."""
    try:
        found = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise SettingsError(name, f"not valid YAML: {_place(error)}") from error
    if found is None:
        return TelemetrySettings()
    if not isinstance(found, dict):
        raise SettingsError(name, "the file must consist of 'key: value' lines")
    kinds = get_type_hints(TelemetrySettings)
    if unknown := sorted(str(key) for key in found if key not in kinds and key not in _IGNORED):
        meant = get_close_matches(unknown[0], kinds, 1)
        way_out = f"did you mean {meant[0]!r}?" if meant else f"use one of {', '.join(sorted(kinds))}"
        raise SettingsError(name, f"unknown key {unknown[0]!r}, {way_out}")
    return TelemetrySettings(
        **{key: _checked(key, value, kinds[key], name) for key, value in found.items() if key in kinds}
    )


def _place(error: yaml.YAMLError) -> str:
    """Return what is wrong and in which line, without PyYAML's excerpt of the file."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return f"{error.problem} in line {error.problem_mark.line + 1}"
    return " ".join(str(error).split())


def job_settings(environment: JobEnvironment, environ: Mapping[str, str] = os.environ) -> TelemetrySettings:
    """Return a job's settings: from the file beside its endpoint file, else from the one that the environment names."""
    handed_on = environment.endpoint_file.parent / SETTINGS_FILE
    if handed_on.exists():
        return load_settings(handed_on)
    if named := environ.get(TELEMETRY_CONFIG):
        return load_settings(Path(named))
    return TelemetrySettings()


def _checked(key: str, value: object, kind: type, name: str) -> Any:
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if kind is str and value is None:
        value = ""
    if type(value) is not kind:
        words = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}
        raise SettingsError(name, f"{key} is {value!r}, it must be {words[kind]}")
    if key in _BOUNDS and isinstance(value, int | float):
        low, high = _BOUNDS[key]
        if not low <= value <= high:
            raise SettingsError(name, f"{key} is {value}, it must be from {low:g} to {high:g}")
    return value
