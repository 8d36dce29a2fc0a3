"""The telemetry settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from laggard.kvstore.client.environment import JobEnvironment
from laggard.telemetry.errors import SettingsError
from laggard.telemetry.settings import SETTINGS_FILE, TELEMETRY_CONFIG, TelemetrySettings, job_settings, load_settings


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_dragons_keys_are_understood(tmp_path: Path) -> None:
    text = """
aggregator_port: 5000
tsdb_server_port: 4243
collector_rate: 1
default_tmdb_window: 3600
default_tmdb_dir: /tmp
delete_tmdb: 1
remote_port_forward: login1
dump_dir: /scratch/dumps
dump_node: node1
"""
    assert load_settings(write(tmp_path / "t.yaml", text)) == TelemetrySettings(
        aggregator_port=5000,
        collector_rate=1.0,
        default_tmdb_window=3600.0,
        remote_port_forward="login1",
        dump_dir="/scratch/dumps",
        dump_node="node1",
    )


def test_an_empty_file_means_the_defaults(tmp_path: Path) -> None:
    assert load_settings(write(tmp_path / "t.yaml", "")) == TelemetrySettings()


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("colector_rate: 1", "colector_rate"),
        ("collector_rate: fast", "fast"),
        ("collector_rate: 0", "collector_rate"),
        ("collector_rate: .nan", "collector_rate"),
        ("aggregator_port: 70000", "70000"),
        ("aggregator_port: true", "whole number"),
        ("dump_dir: 5", "text"),
        ("- a\n- b", "key: value"),
        ("a: [", "YAML"),
        ("!!python/object/apply:os.system ['true']", "YAML"),
    ],
)
def test_an_invalid_setting_is_refused_in_one_line_that_names_it(tmp_path: Path, text: str, named: str) -> None:
    with pytest.raises(SettingsError, match=named) as refusal:
        load_settings(write(tmp_path / "t.yaml", text))

    assert "t.yaml" in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"nothing\.yaml"):
        load_settings(tmp_path / "nothing.yaml")


def test_settings_that_the_launcher_passes_on_win_over_the_environment(tmp_path: Path) -> None:
    environment = JobEnvironment(tmp_path / "endpoint.json", 0, "node1")
    named = write(tmp_path / "other.yaml", "collector_rate: 2")

    from_environment = job_settings(environment, {TELEMETRY_CONFIG: str(named)})
    write(tmp_path / SETTINGS_FILE, "collector_rate: 3")
    handed_on = job_settings(environment, {TELEMETRY_CONFIG: str(named)})

    assert (from_environment.collector_rate, handed_on.collector_rate) == (2.0, 3.0)
