"""What a launcher is asked over PMI-1, and what is said of one that does not answer; tests/clusters asks real ones."""

from __future__ import annotations

import os
import re
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from laggard.resilience.allocation import launchers
from laggard.resilience.allocation.launchers import ask_launcher
from laggard.resilience.allocation.place import PORT, Place, place_in
from laggard.resilience.errors import UsageError
from tests.waiting import DEADLINE_S

# As Flux's RFC 13 has them.
ANSWERS = {
    "cmd=init pmi_version=1 pmi_subversion=1": "cmd=response_to_init rc=0 pmi_version=1 pmi_subversion=1",
    "cmd=get_my_kvsname": "cmd=my_kvsname rc=0 kvsname=space",
    f"cmd=put kvsname=space key=laggard-first value={socket.gethostname()}": "cmd=put_result rc=0",
    "cmd=barrier_in": "cmd=barrier_out rc=0",
    "cmd=get kvsname=space key=laggard-first": "cmd=get_result rc=0 value=gpu1",
    "cmd=finalize": "cmd=finalize_ack rc=0",
}
FLUX_JOB = "\u01922bqSfvY"


def _ask(rank: str, answers: dict[str, str]) -> tuple[dict[str, str], list[str]]:
    """Return what a rank learns from a launcher with these answers, and what it has said."""
    here, there = socket.socketpair()
    there.settimeout(DEADLINE_S)
    said: list[str] = []

    def serve() -> None:
        with there, there.makefile("rw", encoding="ascii") as lines:
            for line in lines:
                said.append(line.strip())
                if line.strip() not in answers:
                    return
                lines.write(answers[line.strip()] + "\n")
                lines.flush()

    server = threading.Thread(target=serve)
    server.start()
    try:
        return ask_launcher({"PMI_FD": str(here.detach()), "PMI_RANK": rank}, DEADLINE_S), said
    finally:
        server.join(DEADLINE_S)


@pytest.mark.parametrize("rank", ["0", "1"])
def test_over_pmi_the_first_rank_tells_its_host_and_all_learn_it(rank: str) -> None:
    learned, said = _ask(rank, ANSWERS)
    assert learned == {"MASTER_ADDR": "gpu1"}
    assert said == [line for line in ANSWERS if rank == "0" or "cmd=put" not in line]


def _serve_as_flux(there: socket.socket, space: dict[str, str], barrier: threading.Barrier) -> None:
    """Answer one task as Flux's shell does: its space has the name of the job, which is no ASCII."""
    with there, there.makefile("rw", encoding="utf-8") as lines:
        for line in lines:
            asked = dict(word.split("=", 1) for word in line.split())
            assert asked.get("kvsname", FLUX_JOB) == FLUX_JOB
            match asked["cmd"]:
                case "get_my_kvsname":
                    answer = f"cmd=my_kvsname rc=0 kvsname={FLUX_JOB}"
                case "put":
                    space[asked["key"]] = asked["value"]
                    answer = "cmd=put_result rc=0"
                case "barrier_in":
                    barrier.wait(DEADLINE_S)
                    answer = "cmd=barrier_out rc=0"
                case "get":
                    answer = f"cmd=get_result rc=0 value={space[asked['key']]}"
                case _:
                    answer = ANSWERS[line.strip()]
            lines.write(f"{answer}\n")
            lines.flush()


def test_the_tasks_of_a_job_of_fluxs_learn_their_places() -> None:
    space: dict[str, str] = {}
    barrier = threading.Barrier(3)

    def place_of(rank: int) -> Place:
        here, there = socket.socketpair()
        server = threading.Thread(target=_serve_as_flux, args=(there, space, barrier))
        server.start()
        environ = {"FLUX_JOB_ID": FLUX_JOB, "FLUX_JOB_SIZE": "3", "FLUX_JOB_NNODES": "3", "FLUX_TASK_LOCAL_ID": "0"}
        environ |= {"FLUX_TASK_RANK": str(rank), "PMI_RANK": str(rank), "PMI_SIZE": "3", "PMI_FD": str(here.detach())}
        told = ask_launcher(environ, DEADLINE_S)
        server.join(DEADLINE_S)
        return place_in({**told, **environ}, None, "")

    with ThreadPoolExecutor(3) as tasks:
        assert [*tasks.map(place_of, range(3))] == [Place(rank, 3, socket.gethostname(), PORT) for rank in range(3)]


@pytest.mark.parametrize(
    "answers",
    [
        {},
        {**ANSWERS, "cmd=get_my_kvsname": "cmd=my_kvsname rc=0"},
        {**ANSWERS, "cmd=get kvsname=space key=laggard-first": "cmd=get_result rc=-1 msg=none"},
        {**ANSWERS, "cmd=barrier_in": "a word of somebody else's"},
    ],
    ids=["hangs up", "incomplete", "failure", "nonsense"],
)
def test_a_launcher_that_does_not_answer_as_it_should_is_quoted(answers: dict[str, str]) -> None:
    with pytest.raises(
        UsageError, match=r"does not learn from the launcher .*PMI answers .*: give --join=HOST, or set"
    ):
        _ask("1", answers)


def test_a_descriptor_that_is_no_socket_is_no_launcher() -> None:
    reading, writing = os.pipe()
    with pytest.raises(UsageError, match="does not learn from the launcher"):
        ask_launcher({"PMI_FD": str(reading)}, DEADLINE_S)
    for descriptor in (reading, writing):
        os.close(descriptor)


def test_without_its_library_pmix_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launchers, "_PMIX_LIBRARY", "libpmix-that-nobody-has.so.2")
    message = "does not learn from the launcher where the first node is (libpmix-that-nobody-has.so.2"
    with pytest.raises(UsageError, match=re.escape(message)):
        ask_launcher({"PMIX_NAMESPACE": "job"}, DEADLINE_S)


def test_a_step_of_slurm_begins_on_its_first_node_and_nobody_else_says_anything() -> None:
    assert ask_launcher({"SLURM_STEP_NODELIST": "gpu[07-09]"}, DEADLINE_S) == {"MASTER_ADDR": "gpu07"}
    assert ask_launcher({}, DEADLINE_S) == {}
