"""The ranks of a --per-node program: their variables, their common exit code, their output."""

from __future__ import annotations

import inspect
import io
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laggard.kvstore.control import NodeRecord
from laggard.resilience.allocation.base import ChildAgent
from laggard.resilience.nodes.node import Node
from laggard.resilience.nodes.rank_variables import (
    device_variables,
    host_file,
    host_list,
    node_variables,
    run_variables,
)
from laggard.resilience.nodes.ranks import LONGEST_LINE_BYTES, Lines, Ranks, combined_exit_code
from laggard.system.printer import Printer
from tests.waiting import wait_until

DEADLINE_S = 10.0


def test_a_node_gets_its_rank_and_the_address_of_the_primary_also_for_torchrun() -> None:
    variables = node_variables(1, 3, "127.5.6.1", 29500)
    expected = {"NODE_RANK": "1", "NNODES": "3", "MASTER_ADDR": "127.5.6.1", "MASTER_PORT": "29500"}
    assert variables == expected | {f"PET_{name}": value for name, value in expected.items()}


NODES = [NodeRecord("gpu1", "10.0.0.1", ("0", "1")), NodeRecord("gpu2", "10.0.0.2", ("0", "1", "3"))]


def test_the_copy_of_a_device_gets_what_torchrun_would_set() -> None:
    variables = device_variables(NODES, 29500, 2, {})
    assert [[own["RANK"] for own in node] for node in variables] == [["0", "1"], ["2", "3", "4"]]
    assert variables[1][2] == {
        "RANK": "4",
        "LOCAL_RANK": "2",
        "WORLD_SIZE": "5",
        "LOCAL_WORLD_SIZE": "3",
        "NODE_RANK": "1",
        "GROUP_RANK": "1",
        "GROUP_WORLD_SIZE": "2",
        "ROLE_RANK": "4",
        "ROLE_WORLD_SIZE": "5",
        "ROLE_NAME": "default",
        "NNODES": "2",
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "29500",
        "OMP_NUM_THREADS": "1",
        "TORCHELASTIC_RUN_ID": "laggard-29500",
        "TORCHELASTIC_RESTART_COUNT": "2",
        "TORCHELASTIC_MAX_RESTARTS": "2",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
    }


def test_what_the_user_has_set_and_a_rank_that_has_its_node_alone_keep_their_threads() -> None:
    (node1, _) = device_variables(NODES, 1, 0, {"OMP_NUM_THREADS": "4", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"})
    assert "OMP_NUM_THREADS" not in node1[0]
    assert node1[0]["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "0"
    assert "OMP_NUM_THREADS" not in device_variables([NodeRecord("n", "10.0.0.1", ("0",))], 1, 0, {})[0][0]


@pytest.mark.parametrize(
    ("rank", "environ", "expected"),
    [
        (0, {}, {"WANDB_RUN_ID": "train-1", "WANDB_RESUME": "allow"}),
        (3, {}, {"WANDB_RUN_ID": "train-1-3", "WANDB_RESUME": "allow"}),
        (3, {"WANDB_RUN_ID": "own"}, {"WANDB_RUN_ID": "own", "WANDB_RESUME": "allow"}),  # of a sweep, for example
        (0, {"WANDB_RESUME": "never"}, {}),
    ],
)
def test_each_rank_has_a_run_of_its_own_to_resume_and_what_the_user_has_set_counts(
    rank: int, environ: dict[str, str], expected: dict[str, str]
) -> None:
    assert run_variables("train-1", rank, environ) == expected


def test_every_variable_that_torchruns_agent_sets_is_set() -> None:
    agent = pytest.importorskip(
        "torch.distributed.elastic.agent.server.local_elastic_agent", reason="needs the extra `torch`"
    )
    block = inspect.getsource(agent.LocalElasticAgent._start_workers)
    set_by_torchrun = set(re.findall(r'"([A-Z][A-Z_]+)": ', block))
    assert {"RANK", "GROUP_RANK", "TORCHELASTIC_RUN_ID"} <= set_by_torchrun
    assert set_by_torchrun - device_variables(NODES, 1, 0, {})[0][0].keys() == set()


def test_other_launchers_get_the_hosts_with_their_devices() -> None:
    assert host_list(NODES) == "gpu1,gpu2"
    assert host_file(NODES) == "gpu1 slots=2\ngpu2 slots=3\n"
    virtual = [NodeRecord("node1", "127.3.4.1", ())]
    assert (host_list(virtual), host_file(virtual)) == ("127.3.4.1", "127.3.4.1 slots=1\n")


@pytest.mark.parametrize(
    ("exits", "exit_code"),
    [
        ([None, None], None),
        ([0, None], None),
        ([0, 0], 0),
        ([None, 3], 3),  # the first failure wins: the others are still running
        ([0, 3, None], 3),
        ([1, -9], -9),  # the other one failed because this one was killed
        ([-15, -9], -15),
    ],
)
def test_the_exit_code_of_all_ranks_together(exits: list[int | None], exit_code: int | None) -> None:
    assert combined_exit_code(exits) == exit_code


@given(st.lists(st.text(alphabet="ab\n\r", max_size=8)), st.text(alphabet="ab", max_size=3))
def test_lines_are_the_same_however_the_text_is_cut(pieces: list[str], rest: str) -> None:
    text = "".join(pieces) + rest
    lines = Lines(b"> ")
    cut = b"".join(lines.take(piece.encode()) for piece in pieces) + lines.take(rest.encode()) + lines.end()
    ends = text if not text or text[-1] in "\r\n" else text + "\n"
    whole = "".join(f"> {line}" for line in ends.splitlines(keepends=True))
    assert cut.replace(b"\r> \n", b"\r\n") == whole.encode()  # a cut between the two makes them two ends


def test_an_endless_line_is_split() -> None:
    assert Lines(b"> ").take(b"x" * (LONGEST_LINE_BYTES + 1)) == b"> " + b"x" * LONGEST_LINE_BYTES + b"\n"


def test_printing_does_not_wait_for_a_terminal_that_hangs() -> None:
    reader, writer = os.pipe()
    with os.fdopen(reader, "rb") as terminal, os.fdopen(writer, "wb", buffering=0) as ours:
        printer = Printer({"stdout": ours})
        printed = threading.Event()
        printer.add("stdout", b"x" * 1_000_000, printed.set)
        assert not printed.is_set()
        read = 0
        while read < 1_000_000:
            read += len(terminal.read1(1 << 16))
        assert printed.wait(DEADLINE_S)
        printer.drain(DEADLINE_S)


class Closed(io.BytesIO):
    def write(self, _: object) -> int:
        raise BrokenPipeError


def test_output_that_cannot_be_written_is_dropped_and_the_ranks_go_on() -> None:
    printer = Printer({"stdout": Closed()})
    printed: list[int] = []
    for number in range(3):
        printer.add("stdout", b"line\n", lambda number=number: printed.append(number))  # type: ignore[misc]
    printer.drain(DEADLINE_S)
    assert printed == [0, 1, 2]


# Says that rank 1 has ended as it is told to, and that rank 0 has when it is asked for a pong.
AGENT = """
import sys
from laggard.resilience.wire import encode
from laggard.resilience.wire.node import Ping
from laggard.resilience.wire.tasks import TaskEnded
def say_end(rank, exit_code, words=""):
    sys.stdout.buffer.write(encode(TaskEnded(f"program-0-{rank}", exit_code, 1, 0.0, 1.0, words)))
    sys.stdout.buffer.flush()
say_end(1, int(sys.argv[1]), sys.argv[2])
for line in sys.stdin.buffer:
    if line == encode(Ping()):
        say_end(0, 1)
"""


@pytest.fixture
def two_ranks(request: pytest.FixtureRequest) -> Iterator[tuple[Node, Ranks]]:
    """Two ranks on one node, of which the second one has ended with a code; the other is waited for so long."""
    exit_code, settle_s, words = request.param
    agent = subprocess.Popen(
        [sys.executable, "-c", AGENT, str(exit_code), words], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    changed, printer = threading.Condition(), Printer({})
    node = Node(NodeRecord("node1", "127.0.0.1", ("0", "1")), ChildAgent(agent), changed)
    ranks = Ranks(["train"], 0, [node], 29500, changed, printer, per_device=True, settle_s=settle_s)
    wait_until(lambda: ranks.exit_code is not None)
    yield node, ranks
    node.agent.kill()
    printer.drain(DEADLINE_S)


@pytest.mark.parametrize("two_ranks", [(-signal.SIGKILL, 0.1, ""), (1, 0.1, "")], indirect=True)
def test_a_rank_that_does_not_end_is_not_waited_for_any_longer(two_ranks: tuple[Node, Ranks]) -> None:
    _, ranks = two_ranks
    assert [(end.rank, end.device) for end in ranks.failed()] == [(1, "1")]


@pytest.mark.parametrize(
    "two_ranks",
    [
        *((code, 3600.0, "") for code in (-signal.SIGKILL, -signal.SIGSEGV, -signal.SIGABRT, 1)),
        (1, 0.0, "ConnectionResetError: [Errno 104] Connection reset by peer"),
    ],
    indirect=True,
)
def test_however_a_rank_has_ended_the_others_may_still_have_a_cause_of_their_own(
    two_ranks: tuple[Node, Ranks],
) -> None:
    node, ranks = two_ranks
    with ThreadPoolExecutor(1) as pool:
        failed = pool.submit(ranks.failed)
        node.checks.ping()
        assert sorted(end.rank for end in failed.result(DEADLINE_S) if end.rank is not None) == [0, 1]
