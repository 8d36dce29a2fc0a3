"""The telemetry's settings: a YAML file with the keys that Dragon's users know, and a few of our own."""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_type_hints

import yaml

from kvstore.environment import JobEnvironment

__all__ = ["SETTINGS_FILE", "TELEMETRY_CONFIG", "SettingsError", "TelemetrySettings", "job_settings", "load_settings"]

TELEMETRY_CONFIG = "LAGGARD_TELEMETRY_CONFIG"
SETTINGS_FILE = "telemetry.yaml"
"""Name of the file beside a node's endpoint file in which the launcher hands the settings on."""

# Keys of Dragon's that name things which do not exist here: a database server of each node, and its files.
_WITHOUT_MEANING = frozenset({"tsdb_server_port", "default_tmdb_dir", "default_tmdb_directory", "delete_tmdb"})


class SettingsError(ValueError):
    """The telemetry's settings cannot be used."""


@dataclass(frozen=True, slots=True)
class TelemetrySettings:
    """What can be set.

    Attributes
    ----------
    aggregator_port
        Port of the HTTP server on the primary node, at its loopback address.
    collector_rate
        Seconds from one reading of a node's and its devices' metrics to the next.
    default_tmdb_window
        Seconds for which samples are kept on their node.
    rollup_window
        Seconds for which the primary keeps ten-second averages, extremes and counts.
    store_megabytes
        Bound on a node's store; beyond it the oldest samples go early.
    remote_port_forward
        Login node to name in the ssh command that is printed.
    dump_dir
        Folder for dumps; if it is set, there is one at the job's end. By default they go to the folder in which
        the job was started.
    dump_node
        The one node that writes a dump, of all nodes; by default each writes its own.
    dump_interval
        Seconds from one dump to the next; 0: only on request and at the job's end.
    unknown_metric_is_error
        Answer a query for a metric that nobody has sent with an error, as OpenTSDB does, rather than with no series.
    max_answer_series
        A query's answer has at most this many series.
    reading_needs_token
        Answer nothing but ``/health`` without the token, so that other users of the primary node cannot read.
    telnet_port
        Port for ``put`` lines, at the loopback address, without any authentication, which may be the
        ``aggregator_port``; 0: none.
    """

    aggregator_port: int = 4242
    collector_rate: float = 0.5
    default_tmdb_window: float = 300.0
    rollup_window: float = 21_600.0
    store_megabytes: int = 256
    remote_port_forward: str = ""
    dump_dir: str = ""
    dump_node: str = ""
    dump_interval: float = 0.0
    unknown_metric_is_error: bool = False
    max_answer_series: int = 2000
    reading_needs_token: bool = False
    telnet_port: int = 0

    def to_yaml(self) -> str:
        """Return what :func:`load_settings` reads."""
        return yaml.safe_dump(asdict(self))

    def tunnel_command(self, port: int) -> str:
        """Return the ssh command that brings the server's port to the machine in front of the user."""
        jump = f"-J {self.remote_port_forward} " if self.remote_port_forward else ""
        return f"ssh {jump}-N -L {port}:localhost:{port} {getpass.getuser()}@{socket.gethostname()}"


_BOUNDS: Mapping[str, tuple[float, float]] = {
    "aggregator_port": (1, 65535),
    "telnet_port": (0, 65535),
    "collector_rate": (0.05, 3600),
    "default_tmdb_window": (10, 7 * 86_400),
    "rollup_window": (60, 30 * 86_400),
    "store_megabytes": (1, 1 << 20),
    "dump_interval": (0, 7 * 86_400),
    "max_answer_series": (1, 1_000_000),
}


def load_settings(path: Path) -> TelemetrySettings:
    """Read settings from a YAML file.

    Raises
    ------
    SettingsError
        If the file cannot be read, a key is unknown, or a value is of the wrong kind or out of bounds.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"cannot read the telemetry settings {path}: {error}") from error
    return parse_settings(text, str(path))


def parse_settings(text: str, name: str) -> TelemetrySettings:
    """Read settings from YAML text; ``name`` is for error messages."""
    try:
        found = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise SettingsError(f"{name} is no YAML: {_place(error)}") from error
    if found is None:
        return TelemetrySettings()
    if not isinstance(found, dict):
        raise SettingsError(f"{name} must be a list of 'key: value' lines")
    kinds = get_type_hints(TelemetrySettings)
    if unknown := sorted(str(key) for key in found if key not in kinds and key not in _WITHOUT_MEANING):
        raise SettingsError(f"{name}: unknown key {unknown[0]!r}, use one of {', '.join(sorted(kinds))}")
    return TelemetrySettings(
        **{key: _checked(key, value, kinds[key], name) for key, value in found.items() if key in kinds}
    )


def _place(error: yaml.YAMLError) -> str:
    """Return what is wrong and in which line, without PyYAML's drawing of it."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return f"{error.problem} in line {error.problem_mark.line + 1}"
    return " ".join(str(error).split())


def job_settings(environment: JobEnvironment, environ: Mapping[str, str] = os.environ) -> TelemetrySettings:
    """Return the settings of a job: from the file beside its endpoint file, else the one that the environment names."""
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
        raise SettingsError(f"{name}: {key} is {value!r}, it must be {words[kind]}")
    if key in _BOUNDS and isinstance(value, int | float):
        low, high = _BOUNDS[key]
        if not low <= value <= high:
            raise SettingsError(f"{name}: {key} is {value}, it must be from {low:g} to {high:g}")
    return value
