"""The error tree, of all packages: one root, values as attributes, and nothing lost in a pickle."""

from __future__ import annotations

import inspect
import pickle
import pkgutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, cast, get_type_hints

import pytest

import laggard
from laggard.collectors.links.handshake import UnauthenticatedError
from laggard.errors import LaggardError
from laggard.resilience.errors import UsageError
from tests.torch_modules import is_for_missing_library

EXAMPLE_VALUES: dict[Any, tuple[Any, ...]] = {
    str: ("some text",),
    int: (7,),
    float: (1.5,),
    Path: (Path("/some/path"),),
    int | None: (7, None),
    float | None: (1.5, None),
    str | None: ("some text", None),
    tuple[str, ...]: (("a", "b"),),
    tuple[int, ...]: ((3, 4),),
    Sequence[str]: (("a", "b"),),
    Sequence[int]: ([1, 2],),
    Mapping[str, str]: ({"a": "b"},),
    bool: (True, False),
    object: ("2", None),
}


@cache
def error_types() -> list[type[Exception]]:
    """Return every error type that a module of laggard defines, below the root; those for PyTorch define none."""
    found: set[type[Exception]] = set()
    for module in pkgutil.walk_packages(laggard.__path__, "laggard."):
        if (
            not module.name.endswith("__main__")
            and not module.name.startswith("laggard.torch.")
            and not is_for_missing_library(module.name)
        ):
            found |= {
                value
                for value in vars(import_module(module.name)).values()
                if inspect.isclass(value)
                and issubclass(value, Exception)
                and value.__module__.startswith("laggard.")
                and value.__name__.endswith("Error")
            }
    return sorted(found - {LaggardError}, key=lambda error: error.__name__)


def examples(error_type: type[Exception]) -> Iterator[tuple[Exception, dict[str, Any]]]:
    """Yield errors of a type, with the values that they were made of."""
    kinds = get_type_hints(error_type, localns={"ClassVar": ClassVar})
    choices = {each.name: EXAMPLE_VALUES[kinds[each.name]] for each in fields(cast("Any", error_type))}
    for which in range(max((len(values) for values in choices.values()), default=1)):
        values = {name: values[min(which, len(values) - 1)] for name, values in choices.items()}
        yield error_type(*values.values()), values


@pytest.mark.parametrize("error_type", error_types(), ids=lambda error: error.__name__)
def test_every_error_is_below_the_root(error_type: type[Exception]) -> None:
    assert issubclass(error_type, LaggardError)


@pytest.mark.parametrize("error_type", error_types(), ids=lambda error: error.__name__)
def test_an_error_has_its_values_as_attributes(error_type: type[Exception]) -> None:
    for error, values in examples(error_type):
        assert {name: getattr(error, name) for name in values} == values
        assert str(error) or not values


@pytest.mark.parametrize("error_type", error_types(), ids=lambda error: error.__name__)
def test_an_error_that_crosses_a_process_boundary_keeps_its_type_message_and_values(
    error_type: type[Exception],
) -> None:
    for error, _ in examples(error_type):
        copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
        assert (type(copy), str(copy), vars(copy)) == (type(error), str(error), vars(error))


class StepError(LaggardError, OSError):
    """An error as this test declares it."""

    step: int
    reason: str
    names: Sequence[str] = ()
    template = "step {step:03d} of {_listed}: {reason!r}"

    @property
    def _listed(self) -> str:
        return " and ".join(self.names) or "none"


def test_an_error_is_declared_by_its_fields_and_a_template_of_fields_and_properties() -> None:
    error = StepError(7, reason="late", names=["n1", "n2"])
    assert str(error) == "step 007 of n1 and n2: 'late'"
    assert (error.step, error.reason, error.args) == (7, "late", (7, "late", ["n1", "n2"]))
    assert str(StepError(7, "late")) == "step 007 of none: 'late'"
    with pytest.raises(TypeError, match="reason"):
        StepError(7)  # type: ignore[call-arg]  # mypy knows the constructor too


def test_the_walk_finds_the_errors_of_several_packages() -> None:
    assert {laggard.NotAListError, laggard.SettingsError, UnauthenticatedError, UsageError} <= set(error_types())


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (laggard.UnsupportedValueError, TypeError),
        (laggard.NotAListError, TypeError),
        (laggard.NotACounterError, TypeError),
        (laggard.StateUnavailableError, ConnectionError),
        (laggard.NoCheckpointError, LookupError),
        (laggard.NotInJobError, LookupError),
        (laggard.NoLaunchRecordError, LookupError),
        (laggard.ClosedTransactionError, RuntimeError),
        (laggard.NotConnectedError, RuntimeError),
        (laggard.SettingsError, ValueError),
        (laggard.DumpError, ValueError),
        (laggard.NodeError, ValueError),
    ],
)
def test_an_error_is_also_of_the_standard_kind(error: type[Exception], kind: type[Exception]) -> None:
    assert issubclass(error, kind)
