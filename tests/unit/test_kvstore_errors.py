"""The error tree."""

from __future__ import annotations

import pickle

import pytest

from kvstore import errors

EXAMPLES = [
    errors.UnsupportedValueError("key", "why"),
    errors.NotAListError("key"),
    errors.NotACounterError("key"),
    errors.ConflictError("'key'"),
    errors.FencedError(1, 2),
    errors.FencedError(1, None),
    errors.StaleLaunchError(1, 2),
    errors.CorruptValueError("key", "why"),
    errors.StateUnavailableError("host", 1, "why"),
    errors.StateFullError("where", "why"),
    errors.NoCheckpointError(1, "why"),
    errors.DamagedCheckpointError(1, "why", 0),
    errors.EndpointFileError("text"),
    errors.PortTakenError("host", 1),
    errors.StateDirectoryError("path", "why"),
    errors.ServerStartError("why", "log"),
]


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_an_error_that_crosses_a_process_border_keeps_its_type_message_and_fields(error: errors.KVStoreError) -> None:
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    assert (type(copy), str(copy), vars(copy)) == (type(error), str(error), vars(error))


def test_every_error_has_an_example_here() -> None:
    bases = {errors.KVStoreError, errors.ServerError}
    named = {value for name in errors.__all__ if isinstance(value := getattr(errors, name), type)}
    assert {type(error) for error in EXAMPLES} == named - bases


def test_errors_are_also_of_the_standard_kinds() -> None:
    assert issubclass(errors.UnsupportedValueError, TypeError)
    assert issubclass(errors.NotAListError, TypeError)
    assert issubclass(errors.StateUnavailableError, ConnectionError)
