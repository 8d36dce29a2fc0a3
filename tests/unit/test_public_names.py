"""What ``laggard`` exports, and what importing it costs."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import pytest

import laggard

HEAVY = {"cupy", "matplotlib", "numpy", "ray", "redis", "scipy", "starlette", "torch", "uvicorn"}


def modules_loaded_by(statement: str) -> set[str]:
    """Return the modules that a fresh interpreter has loaded after a statement."""
    program = f"import sys; before = set(sys.modules); {statement}; print(*(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    return set(done.stdout.split())


@pytest.mark.parametrize("name", laggard.__all__)
def test_a_public_name_is_what_its_module_has_under_it(name: str) -> None:
    value = getattr(laggard, name)
    assert value.__name__ == name
    assert getattr(import_module(value.__module__), name) is value


def test_what_is_public_in_a_package_is_not_missing_here() -> None:
    assert set(laggard.__all__) <= set(dir(laggard))
    with pytest.raises(AttributeError, match="'laggard' has no attribute 'nothing'"):
        _ = laggard.nothing  # type: ignore[attr-defined]


def test_importing_laggard_loads_nothing_but_the_standard_library() -> None:
    loaded = {name.partition(".")[0] for name in modules_loaded_by("import laggard")}
    assert "laggard" in loaded
    assert loaded - {"laggard"} <= sys.stdlib_module_names
    assert [name for name in modules_loaded_by("import laggard") if name.startswith("laggard.")] == ["laggard.lazy"]


@pytest.mark.parametrize("name", ["StateFullError", "SettingsError", "LaggardError"])
def test_an_error_is_imported_without_the_libraries_that_raise_it(name: str) -> None:
    assert not {module.partition(".")[0] for module in modules_loaded_by(f"from laggard import {name}")} & HEAVY


@pytest.mark.parametrize("name", ["State", "Telemetry", "Job", "SlowGPUAnalysis"])
def test_what_a_program_uses_needs_no_extra(name: str) -> None:
    loaded = {module.partition(".")[0] for module in modules_loaded_by(f"from laggard import {name}")}
    assert not loaded & {"ray", "cupy", "torch", "matplotlib"}
