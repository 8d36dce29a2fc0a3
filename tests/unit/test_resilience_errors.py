"""The errors of the command and the controller: one tree, values as attributes, messages built from them."""

from __future__ import annotations

import inspect
import pickle

import pytest

import laggard.resilience
from laggard.errors import LaggardError
from laggard.resilience import errors

EXAMPLES: list[tuple[Exception, str]] = [
    (
        errors.UsageError("--nodes=0", "leaves no node to run on", "use 1 to 3"),
        "--nodes=0 leaves no node to run on: use 1 to 3",
    ),
    (errors.UsageError("no hosts are named"), "no hosts are named"),
    (errors.MessageError("StartTask.name is not text"), "StartTask.name is not text"),
    (errors.ProgramError("train.py", "does not exist"), "train.py does not exist"),
    (errors.AllocationError("Slurm has no nodes for job 7"), "Slurm has no nodes for job 7"),
    (errors.NodeAddressError("has no IPv4 address", "n2"), "n2 has no IPv4 address"),
    (
        errors.UnreachableNodesError(
            "no answer by ssh", {"n2": "timed out", "n3": "refused"}, ["ssh", "n2", "exec true"]
        ),
        "no answer by ssh from n2 (timed out), n3 (refused): try ssh n2 'exec true'",
    ),
    (
        errors.NotJoinedError("within 9 s", ["index1", "index2"], "gpu1:27182"),
        "index1, index2 did not join at gpu1:27182 within 9 s: does the same command run there, with the same secret?",
    ),
    (errors.ResourceManagerError("did not answer within 20 s", "squeue"), "squeue did not answer within 20 s"),
    (errors.NodeHistoryError("Permission denied"), "--node-history cannot be used: Permission denied"),
    (errors.ClusterError("n9 did not leave the cluster"), "n9 did not leave the cluster"),
    (errors.NodeDownError("no log", "n2"), "n2 is not up: no log"),
    (
        errors.LeftoversError("old Ray processes could not be ended", ["n1", "n2"]),
        "old Ray processes could not be ended on n1, n2",
    ),
    (
        errors.ProcessesStillRunningError([7, 8], 5.0, ["disk-sleep in nfs_wait", ""]),
        "processes 7 (disk-sleep in nfs_wait), 8 could not be ended within 5 s",
    ),
]


@pytest.mark.parametrize(("error", "message"), EXAMPLES, ids=lambda value: type(value).__name__)
def test_an_error_is_built_from_its_values_and_survives_a_pickle(error: Exception, message: str) -> None:
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    assert isinstance(error, LaggardError)
    assert str(error) == str(copy) == message
    assert vars(copy) == vars(error) != {}


def test_every_error_has_an_example_and_is_public() -> None:
    defined = {each for each in vars(errors).values() if inspect.isclass(each) and issubclass(each, LaggardError)}
    assert {type(error) for error, _ in EXAMPLES} == defined - {LaggardError}
    assert all(getattr(laggard.resilience, type(error).__name__) is type(error) for error, _ in EXAMPLES)


def test_an_error_is_still_the_standard_kind_that_it_is() -> None:
    assert issubclass(errors.UsageError, ValueError)
    assert issubclass(errors.ProgramError, ValueError)
    assert issubclass(errors.AllocationError, RuntimeError)
    assert issubclass(errors.ClusterError, RuntimeError)
    assert issubclass(errors.ProcessesStillRunningError, TimeoutError)
