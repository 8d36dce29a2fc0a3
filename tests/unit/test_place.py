"""Which copy of the job's command this is, by the variables of whatever started it."""

from __future__ import annotations

import dataclasses

import pytest

from laggard.resilience.agent.dialling import JoinToken
from laggard.resilience.allocation.place import PORT, JoinSecret, Place, own_variables, place_in
from laggard.resilience.errors import UsageError

POD = "train-workers-0-3.train.research.svc.cluster.local"
FIRST_POD = "train-workers-0-0.train.research.svc.cluster.local"


@pytest.mark.parametrize(
    ("environ", "address", "place"),
    [
        ({"NODE_RANK": "1", "NNODES": "4", "MASTER_ADDR": "gpu1"}, None, Place(1, 4, "gpu1", PORT)),
        ({"NODE_RANK": "1", "NNODES": "4", "MASTER_ADDR": "gpu1"}, "gpu9:400", Place(1, 4, "gpu9", 400)),
        ({"JOB_COMPLETION_INDEX": "3", "NNODES": "8"}, None, Place(3, 8, FIRST_POD, PORT)),
        ({"JOB_COMPLETION_INDEX": "3", "NNODES": "8"}, "first:77", Place(3, 8, "first", 77)),
        (
            {
                "JOB_COMPLETION_INDEX": "3",
                "PET_NODE_RANK": "3",
                "PET_NNODES": "4",
                "PET_MASTER_ADDR": "train-node-0-0.train",
            },
            None,
            Place(3, 4, "train-node-0-0.train", PORT),
        ),
        ({"FLUX_TASK_RANK": "0", "FLUX_JOB_SIZE": "2"}, "10.0.0.1", Place(0, 2, "10.0.0.1", PORT)),
        ({"PMIX_RANK": "0", "OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_SIZE": "6"}, "a", Place(5, 6, "a", PORT)),
        ({"PMIX_RANK": "2", "NNODES": "3"}, "a", Place(2, 3, "a", PORT)),
        ({"SLURM_PROCID": "1", "SLURM_NTASKS": "2"}, "a", Place(1, 2, "a", PORT)),
        ({"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "train-master-0"}, None, Place(1, 2, "train-master-0", PORT)),
        ({"NODE_RANK": "0", "NNODES": "1"}, "[fd00::1]:9", Place(0, 1, "fd00::1", 9)),
    ],
)
def test_the_variables_of_each_launcher_say_which_copy_this_is(
    environ: dict[str, str], address: str | None, place: Place
) -> None:
    assert place_in(environ, address, POD) == place


@pytest.mark.parametrize(
    ("environ", "address", "message"),
    [
        ({}, "a", "--join does not find out which of the job's nodes this is: set NODE_RANK and NNODES on each node"),
        ({"JOB_COMPLETION_INDEX": "1"}, None, "NNODES= is not a number: set it to that of the job's nodes"),
        ({"PET_NODE_RANK": "1", "PET_NNODES": "1:4"}, "a", "PET_NNODES=1:4 is not a number"),
        ({"NODE_RANK": "2", "NNODES": "2"}, "a", "NODE_RANK=2 is not below NNODES=2: count from 0"),
        ({"NODE_RANK": "1", "NNODES": "2"}, None, "--join does not find out where the first node is"),
        ({"JOB_COMPLETION_INDEX": "2", "NNODES": "3"}, None, "--join does not find out where the first node is"),
        ({"NODE_RANK": "1", "NNODES": "2"}, "a:b", "--join=a:b is not an address: give HOST or HOST:PORT"),
        ({"NODE_RANK": "1", "NNODES": "2"}, "a:70000", "--join=a:70000 is not an address"),
    ],
)
def test_what_is_missing_is_named(environ: dict[str, str], address: str | None, message: str) -> None:
    with pytest.raises(UsageError) as error:
        place_in(environ, address, POD)
    assert str(error.value).startswith(message)


def test_the_program_sees_neither_the_secret_nor_what_would_make_it_a_process_of_the_launcher() -> None:
    environ = {"LAGGARD_JOIN_SECRET": "x", "OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2", "PMIX_RANK": "0"}
    assert own_variables({**environ, "PMI_FD": "3", "HOME": "/", "RANK": "7"}) == {"HOME": "/", "RANK": "7"}


@pytest.mark.parametrize("text", ["", " \n", "123456789012345"])
def test_a_secret_that_could_be_guessed_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"LAGGARD_JOIN_SECRET (holds no|is too short a) secret: give 16 characters"):
        JoinSecret.of_text(text, "LAGGARD_JOIN_SECRET")


def test_from_one_secret_each_agent_gets_an_id_of_its_own_and_each_index_a_secret_of_its_own() -> None:
    secret = JoinSecret.of_text("correct horse battery\n", "file")
    assert secret == JoinSecret.of_text("correct horse battery", "file")

    def token(index: int, secret: JoinSecret = secret) -> JoinToken:
        return secret.token(Place(index, 3, "first", 1), "10.0.0.1")

    first, again, other = token(1), token(1), token(2)
    member, own = secret.member(1)
    assert (first.agent[:16], first.secret) == (member.hex(), own.hex())
    assert (again.agent[:16], again.secret) == (first.agent[:16], first.secret)
    assert first.agent != again.agent
    assert other.agent[:16] != first.agent[:16]
    assert other.secret != first.secret
    wrong = token(1, JoinSecret.of_text("correct horse batteries", "file"))
    assert wrong.secret != first.secret
    assert "battery" not in repr(secret)
    assert dataclasses.replace(first, agent="", secret="") == dataclasses.replace(
        again, agent="", secret="", authority=first.authority
    )
