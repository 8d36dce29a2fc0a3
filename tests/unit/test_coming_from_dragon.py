"""Every name that the guide for Dragon's users promises exists."""

from __future__ import annotations

import dataclasses
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from laggard.collectors.metrics.node import NodeReader
from laggard.detectors import SlowGPUDetector
from laggard.resilience.command.cli import COMMANDS
from laggard.resilience.command.run import run
from laggard.telemetry.catalogue import CATALOGUE
from laggard.telemetry.settings import TELEMETRY_CONFIG, TelemetrySettings

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "coming-from-dragon.md"
OPTIONS = {name for parameter in run.params if isinstance(parameter, click.Option) for name in parameter.opts}
SETTINGS = {field.name for field in dataclasses.fields(TelemetrySettings)}


def promised() -> Iterator[str]:
    """Yield the code in the second column of every table."""
    for row in re.findall(r"^\|(.+)\|$", GUIDE.read_text(), re.MULTILINE):
        yield from re.findall(r"`([^`]+)`", row.split("|")[1])


def exists(name: str) -> bool:
    if name.startswith("-"):
        return name in OPTIONS
    if name.startswith("laggard "):
        return name.removeprefix("laggard ") in COMMANDS
    if name in CATALOGUE or name in SETTINGS or name in {TELEMETRY_CONFIG, SlowGPUDetector.metric_name}:
        return True
    try:
        pkgutil.resolve_name(name)
    except (ImportError, AttributeError):
        return False
    return True


@pytest.mark.parametrize("name", sorted(set(promised())))
def test_what_the_guide_names_exists(name: str) -> None:
    assert exists(name)


def test_the_check_can_fail() -> None:
    assert not exists("--single-node-override")
    assert not exists("laggard cleanup")
    assert not exists("laggard.telemetry.Telemetry.shutdown")


def test_metrics_that_kept_their_names_are_read() -> None:
    read = {reading.metric for reading in NodeReader().read()}
    assert {"load_average", "used_RAM", "cpu_percent", "num_running_processes"} <= read
