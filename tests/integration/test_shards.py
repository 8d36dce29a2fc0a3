"""Shards in the memory of nodes, on their peers and in a shared directory, with real shard servers."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import signal
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from laggard.kvstore.checkpoints import mappings, node_store
from laggard.kvstore.checkpoints.bounds import MEMORY_FOLDER
from laggard.kvstore.checkpoints.checkpointer import Checkpointer
from laggard.kvstore.checkpoints.layout import BLOCK_BYTES
from laggard.kvstore.checkpoints.node_store import NodeStore
from laggard.kvstore.checkpoints.settings import AUTHORITY, CERTIFICATE
from laggard.kvstore.checkpoints.shard_file import whole_grains
from laggard.kvstore.control import Control
from laggard.kvstore.errors import (
    DamagedCheckpointError,
    FencedError,
    NoCheckpointError,
    ShardMemoryError,
)
from laggard.kvstore.server.process import StateServer
from laggard.kvstore.state.mapping import State
from laggard.resilience.controller.shard_servers import CheckpointOptions
from laggard.system.certificates import Authority
from tests.integration.shard_nodes import ShardNodes
from tests.waiting import DEADLINE_S, wait_until

N = 700_000  # 5.6 MB as float64: two blocks

MakeNodes = Callable[..., ShardNodes]


@pytest.fixture
def nodes_of(state_server: StateServer, tmp_path: Path) -> Iterator[MakeNodes]:
    """Make the nodes of a job whose first launch has begun."""
    state_server.endpoint.connect().flushall()
    made: list[ShardNodes] = []

    def make(n_nodes: int, options: CheckpointOptions | None = None, *, run: str = "first") -> ShardNodes:
        made.append(ShardNodes(state_server, tmp_path, n_nodes, options, run))
        if len(made) == 1:
            made[0].begin()
        return made[-1]

    yield make
    for each in made:
        each.end()


def tree(step: int, rank: int = 0) -> dict[str, Any]:
    return {"step": step, "weights": np.full(N, step * 10.0 + rank), "small": np.arange(5)}


def is_tree(found: dict[str, Any], step: int, rank: int = 0) -> bool:
    return found["step"] == step and bool((found["weights"] == step * 10.0 + rank).all())


def test_a_checkpoint_counts_with_its_copies_and_outlives_any_node(nodes_of: MakeNodes) -> None:
    nodes = nodes_of(3)
    nodes.start("n1")
    ranks = [nodes.checkpointer(host, rank, 3) for rank, host in enumerate(nodes.nodes)]
    values = tree(1)
    ranks[0].save(1, values)
    values["weights"][:] = -1  # the program goes on
    nodes.start("n2", "n3")
    for rank in (1, 2):
        assert ranks[0].latest() is None
        ranks[rank].save(1, tree(1, rank))
    assert ranks[0].wait(1, DEADLINE_S)
    assert ranks[1].latest() == 1
    state = State(nodes.client, nodes.endpoint, 0)
    copies = [sorted(state[f"checkpoint/0/1/{rank}-3/shard"]["copies"]) for rank in range(3)]
    assert copies == [["n1", "n2"], ["n2", "n3"], ["n1", "n3"]]
    nodes.lose("n2")
    nodes.begin("n1", "n3")
    after = nodes.checkpointer("n3", 1, 2)
    assert after.latest() == 1
    assert all(is_tree(after.restore(1, rank=rank), 1, rank) for rank in range(3))
    restored = after.restore(1, rank=0)
    restored["weights"][:] = 5  # which changes nothing for others
    assert is_tree(after.restore(1, rank=0), 1, 0)


def test_what_was_lost_is_copied_again_so_that_another_node_may_be_lost(nodes_of: MakeNodes) -> None:
    nodes = nodes_of(4)
    nodes.start()
    nodes.checkpointer("n1").save(1, tree(1))
    assert nodes.checkpointer("n1").wait(1, DEADLINE_S)
    commits = State(nodes.client, nodes.endpoint, 0).commits()
    for gone, left in (("n1", ("n2", "n3", "n4")), ("n2", ("n3", "n4"))):
        nodes.lose(gone)
        nodes.begin(*left)
        state = State(nodes.client, nodes.endpoint, nodes.launch)

        def is_safe(left: tuple[str, ...] = left, state: State = state) -> bool:
            return len(set(left) & set(state["checkpoint/0/1/0-1/shard"]["copies"])) == 2

        wait_until(is_safe, lambda: "it was not copied again")
        assert state.commits() == commits  # which is no progress of the launch
    assert is_tree(nodes.checkpointer("n4").restore(1), 1)


def test_two_nodes_lost_at_once_take_the_checkpoint_with_them_and_the_one_before_is_offered(
    nodes_of: MakeNodes,
) -> None:
    nodes = nodes_of(3)
    nodes.start("n2", "n3")
    nodes.checkpointer("n2").save(1, tree(1))
    assert nodes.checkpointer("n2").wait(1, DEADLINE_S)
    nodes.start("n1")
    nodes.checkpointer("n1").save(2, tree(2))
    assert nodes.checkpointer("n1").wait(2, DEADLINE_S)
    nodes.lose("n1")
    nodes.lose("n2")
    nodes.begin("n3")
    assert nodes.checkpointer("n3").latest() == 1
    with pytest.raises(NoCheckpointError, match="complete ones: \\[1\\]"):
        nodes.checkpointer("n3").restore(2)


def test_a_stopped_peer_delays_nothing_and_another_takes_the_copy(nodes_of: MakeNodes) -> None:
    nodes = nodes_of(3)
    nodes.start()
    nodes.send_signal("n2", signal.SIGSTOP)
    checkpoints = nodes.checkpointer("n1")
    checkpoints.save(1, tree(1))
    assert checkpoints.wait(1, DEADLINE_S)
    assert sorted(State(nodes.client, nodes.endpoint, 0)["checkpoint/0/1/0-1/shard"]["copies"]) == ["n1", "n3"]
    assert "n2 has taken no copy of checkpoint/0/1/0-1/shard" in nodes.log("n1")


def test_a_server_of_an_old_launch_completes_nothing(nodes_of: MakeNodes) -> None:
    nodes = nodes_of(2)
    nodes.start("n1")
    old = nodes.checkpointer("n1")
    old.save(1, tree(1))
    wait_until(lambda: State(nodes.client, nodes.endpoint, 0)["checkpoint/0/1/0-1/shard"]["copies"])
    nodes.begin()
    nodes.start("n2")  # it could take a copy now
    new = nodes.checkpointer("n1")
    new.save(2, tree(2))
    assert new.wait(2, DEADLINE_S)
    assert [found.step for found in new._newest_first()] == [2]
    with pytest.raises(FencedError):
        old.save(3, tree(3))


def test_the_last_ones_are_kept_and_the_others_leave_the_memory_of_all_nodes(nodes_of: MakeNodes) -> None:
    nodes = nodes_of(2)
    nodes.start()
    checkpoints = nodes.checkpointer("n1")
    for step in range(1, 6):
        checkpoints.save(step, tree(step))
        assert checkpoints.wait(step, DEADLINE_S)
    assert sorted(State(nodes.client, nodes.endpoint, 0)) == [f"checkpoint/0/{n}/0-1/shard" for n in (3, 4, 5)]
    size = whole_grains(8 * N)
    for host in nodes.nodes:  # those kept, the one that was saved meanwhile, and a file to be used again
        wait_until(lambda h=host: sum(_memory_of(nodes, h)) < 5.5 * size)  # type: ignore[misc]


def _memory_of(nodes: ShardNodes, host: str) -> list[int]:
    """Return the sizes of the files in memory that a node's server has open; none of them may have a name."""
    found = [each.stat() for each in _files_of(nodes, host)]  # one that is mapped has two descriptors
    return list({each.st_ino: each.st_size for each in found}.values())


def _files_of(nodes: ShardNodes, host: str) -> list[Path]:
    files = []
    for each in Path(f"/proc/{nodes.processes[host].pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # it was closed meanwhile
            link = str(each.readlink())
            if link.startswith((f"{MEMORY_FOLDER}/", "/memfd:")):
                assert link.endswith("(deleted)")
                files.append(each)
    return files


def _damage(nodes: ShardNodes, host: str) -> None:
    for each in _files_of(nodes, host):
        with each.open("r+b") as file:
            file.seek(BLOCK_BYTES + 9)
            file.write(b"!")


def test_a_shard_beyond_the_bound_is_refused_with_both_sizes(nodes_of: MakeNodes) -> None:
    nodes = nodes_of(2, CheckpointOptions(16 << 20))
    nodes.start()
    checkpoints = nodes.checkpointer("n1", keep=1)
    checkpoints.save(1, tree(1))
    assert checkpoints.wait(1, DEADLINE_S)
    with pytest.raises(
        ShardMemoryError,
        match=r"a shard of 32\.0 MiB does not fit: n1 may hold 16\.0 MiB of checkpoints in memory, and 6\.0 MiB are in",
    ):
        checkpoints.save(2, {"a": np.zeros(32 << 20, np.uint8)})
    assert checkpoints.latest() == 1
    assert is_tree(checkpoints.restore(1), 1)
    for step in (2, 3, 4, 5):  # two at a time fit: what is saved waits for what is copied
        checkpoints.save(step, tree(step))
    assert checkpoints.wait(5, DEADLINE_S)


def test_memory_that_a_program_has_written_to_is_freed_when_it_is_given_up(nodes_of: MakeNodes) -> None:
    nodes = nodes_of(1, CheckpointOptions(48 << 20))
    nodes.start()
    checkpoints = nodes.checkpointer("n1", keep=1)
    for step in range(8):  # each larger than the one before: what was written before has to make room
        checkpoints.save(step, {"a": np.zeros((2 + 2 * step) << 20, np.uint8)})
        assert checkpoints.wait(step, DEADLINE_S)
    gc.collect()  # what programs of earlier tests have mapped goes
    maps = Path("/proc/self/maps").read_text().splitlines()
    ours = [line for line in maps if line.endswith("(deleted)") and (f"{MEMORY_FOLDER}/" in line or "/memfd:" in line)]
    assert len(ours) <= 4


def test_arrays_are_read_in_part_from_another_node(nodes_of: MakeNodes) -> None:
    nodes = nodes_of(3)
    nodes.start()
    first, second = (np.random.default_rng(seed).bytes(BLOCK_BYTES + 1000) for seed in (1, 2))
    nodes.checkpointer("n1").save(1, [first, second])
    assert nodes.checkpointer("n1").wait(1, DEADLINE_S)
    elsewhere = nodes.checkpointer("n3")
    (leaves,) = elsewhere.open_trees(1)
    assert bytes(leaves[1].shard.read(leaves[1].start + 10, leaves[1].start + 60)) == second[10:60]
    assert leaves[0].read() == first
    assert elsewhere.restore(1) == [first, second]
    nodes.checkpointer("n1").save(2, b"x" * 2000)
    assert elsewhere.restore(2) == b"x" * 2000
    assert elsewhere.open_trees(2)[0].read() == b"x" * 2000


def test_a_copy_that_is_damaged_in_the_nodes_own_memory_is_read_from_a_peer(nodes_of: MakeNodes) -> None:
    nodes = nodes_of(2)
    nodes.start()
    checkpoints = nodes.checkpointer("n1")
    checkpoints.save(1, tree(1))
    assert checkpoints.wait(1, DEADLINE_S)
    _damage(nodes, "n1")
    assert is_tree(checkpoints.restore(1), 1)
    assert is_tree(checkpoints.restore_part(1), 1)
    _damage(nodes, "n2")
    block = f"the block at byte {BLOCK_BYTES} does not match its checksum"
    with pytest.raises(DamagedCheckpointError, match=rf"on n1, {block}; n2: {block}\).* none before it"):
        checkpoints.restore(1)


def test_the_shared_directory_outlives_all_nodes(nodes_of: MakeNodes, tmp_path: Path) -> None:
    shared = CheckpointOptions(directory=tmp_path / "shared")
    nodes = nodes_of(2, shared)
    nodes.start()
    for step in (1, 2):
        nodes.checkpointer("n1").save(step, tree(step))
        assert nodes.checkpointer("n1").wait(step, DEADLINE_S)
    files = list((tmp_path / "shared" / "folder").iterdir())
    assert [file.stat().st_mode & 0o777 for file in files] == [0o600, 0o600]
    nodes.lose("n1")
    nodes.lose("n2")
    later = nodes_of(1, shared, run="second")
    later.launch = 0
    later.begin()
    assert is_tree(later.checkpointer("n1").restore(2), 2)
    newest = State(nodes.client, nodes.endpoint, 1)["checkpoint/0/2/0-1/shard"]["id"]
    with (tmp_path / "shared" / "folder" / f"{newest}.shard").open("r+b") as file:
        file.seek(BLOCK_BYTES + 7)
        file.write(b"!")
    with pytest.raises(
        DamagedCheckpointError, match=rf"the block at byte {BLOCK_BYTES} .*restore the one before, of step 1"
    ):
        later.checkpointer("n1").restore(2)


def test_without_room_in_the_shared_directory_checkpoints_count_in_memory_and_that_is_said_once(
    nodes_of: MakeNodes, tmp_path: Path
) -> None:
    folder = tmp_path / "shared" / "folder"
    folder.parent.mkdir()
    folder.touch()  # in place of a folder, which cannot be made
    nodes = nodes_of(2, CheckpointOptions(directory=folder.parent))
    nodes.start()
    for host in ("n1", "n2"):
        step = int(host[1:])
        nodes.checkpointer(host).save(step, tree(step))
        assert nodes.checkpointer(host).wait(step, DEADLINE_S)
    requests = Control(nodes.client, nodes.endpoint, 0).requests("0", DEADLINE_S)
    (notice,) = (str(request.body) for _, request in requests if request.kind == "notices")
    assert f"cannot write checkpoints to {folder}: File exists; until that is mended" in notice
    folder.unlink()
    nodes.checkpointer("n1").save(3, tree(3))
    assert nodes.checkpointer("n1").wait(3, DEADLINE_S)
    assert len([*folder.iterdir()]) == 1
    nodes.lose("n1")
    assert is_tree(nodes.checkpointer("n2").restore(2), 2)


@pytest.mark.parametrize("shows", ["nothing", "a certificate of its own"])
def test_who_has_no_certificate_of_the_job_gets_nothing(nodes_of: MakeNodes, tmp_path: Path, shows: str) -> None:
    nodes = nodes_of(1)
    nodes.start()
    server = nodes.registry.read()["n1"]
    context = ssl.create_default_context(cafile=str(nodes.folders["n1"] / AUTHORITY))
    own = Authority().issue("127.0.0.1")
    (tmp_path / "own.pem").write_text(own.certificate + own.key)
    certificates = {"nothing": None, "a certificate of its own": tmp_path / "own.pem"}
    if certificate := certificates[shows]:
        context.load_cert_chain(certificate)

    def ask() -> bytes:
        with (
            socket.create_connection((server.address, server.port), DEADLINE_S) as plain,
            context.wrap_socket(plain, server_hostname=server.address) as connection,
        ):
            text = b'{"do": "read", "key": "checkpoint/0/1/0-1/shard", "id": "x"}'
            connection.sendall(len(text).to_bytes(4, "little") + text)
            return connection.recv(100)

    with pytest.raises((ssl.SSLError, ConnectionError)):
        ask()
    context.load_cert_chain(nodes.folders["n1"] / CERTIFICATE)
    assert b"it is not here" in ask()  # so the attempt was a valid one


def test_a_server_ends_with_its_agent_and_its_memory_has_no_names(nodes_of: MakeNodes) -> None:
    nodes = nodes_of(1)
    nodes.start()
    checkpoints = nodes.checkpointer("n1")
    checkpoints.save(1, tree(1))
    assert checkpoints.wait(1, DEADLINE_S)
    process = psutil.Process(nodes.processes["n1"].pid)
    assert max(_memory_of(nodes, "n1")) > 8 * N
    nodes.end()  # which closes its standard input, as the end of its agent does
    assert not process.is_running()


def test_a_server_that_was_killed_is_replaced_under_the_program(nodes_of: MakeNodes) -> None:
    nodes = nodes_of(2)
    nodes.start()
    checkpoints = nodes.checkpointer("n1")
    checkpoints.save(1, tree(1))
    assert checkpoints.wait(1, DEADLINE_S)
    nodes.lose("n1")
    nodes.start("n1")
    assert is_tree(checkpoints.restore(1), 1)  # from the peer
    checkpoints.save(2, tree(2))
    assert checkpoints.wait(2, DEADLINE_S)
    assert is_tree(checkpoints.restore(2), 2)


def _prepared(checkpoints: Checkpointer) -> list[int]:
    """Return how much memory a program has ready in each file."""
    store = checkpoints._store
    assert isinstance(store, NodeStore)
    return sorted(each.ready_bytes for each in store._mappings._mapped.values())


@pytest.mark.parametrize("n_announced", [0, N // 2, N, 2 * N])
def test_any_size_is_saved_whatever_was_announced(nodes_of: MakeNodes, n_announced: int) -> None:
    nodes = nodes_of(1)
    checkpoints = nodes.checkpointer("n1", keep=1)
    checkpoints.prepare(8 * n_announced)
    nodes.start("n1")  # which a program that announces does not wait for
    if n_announced:
        wait_until(lambda: _prepared(checkpoints) == [whole_grains(8 * n_announced)])
    for step in range(5):
        checkpoints.save(step, tree(step) | {"loss": 1 / (1 + step)})  # of another length each time
        assert checkpoints.wait(step, DEADLINE_S)
        assert is_tree(checkpoints.restore(step), step)
    # The one that counts, the one before, what was restored from, and what is ready.
    wait_until(lambda: sum(_memory_of(nodes, "n1")) <= 5 * whole_grains(8 * N + 1000))


def test_a_rank_holds_what_is_kept_what_is_saved_and_what_is_ready_and_no_more(nodes_of: MakeNodes) -> None:
    nodes = nodes_of(1)
    nodes.start()
    checkpoints = nodes.checkpointer("n1", keep=2)
    checkpoints.prepare(8 * N)
    for step in range(6):
        checkpoints.save(step, tree(step))
        assert checkpoints.wait(step, DEADLINE_S)
    held = 4 * [whole_grains(8 * N + 1000)]
    wait_until(lambda: _memory_of(nodes, "n1") == held, lambda: f"{_memory_of(nodes, 'n1')}")


def test_after_a_relaunch_memory_is_ready_before_the_first_save(nodes_of: MakeNodes) -> None:
    nodes = nodes_of(2)
    nodes.start()
    first = nodes.checkpointer("n1")
    first.save(1, tree(1))
    assert first.wait(1, DEADLINE_S)
    nodes.begin()
    later = nodes.checkpointer("n2")  # which has no memory of its own yet
    assert is_tree(later.restore(1), 1)
    wait_until(lambda: _prepared(later) == [whole_grains(8 * N)])


def test_a_server_that_is_killed_while_it_prepares_leaves_nothing(nodes_of: MakeNodes) -> None:
    nodes = nodes_of(1)
    nodes.start()
    checkpoints = nodes.checkpointer("n1")
    size = 256 << 20
    checkpoints.prepare(size)
    wait_until(lambda: size in _memory_of(nodes, "n1"))
    nodes.lose("n1")
    nodes.start("n1")
    assert _memory_of(nodes, "n1") == []
    checkpoints.save(1, tree(1))
    assert checkpoints.wait(1, DEADLINE_S)
    wait_until(lambda: size not in _mapped())  # by the thread that prepared it


def _mapped() -> set[int]:
    """Return the sizes of what this process has mapped of files that are gone."""
    return {_length(line) for line in Path("/proc/self/maps").read_text().splitlines() if "(deleted)" in line}


def _length(line: str) -> int:
    start, stop = (int(each, 16) for each in line.split()[0].split("-"))
    return stop - start


def test_memory_that_cannot_be_prepared_is_said_once_and_the_save_goes_into_fresh_memory(
    nodes_of: MakeNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def populate(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(mappings, "populate", populate)
    nodes = nodes_of(1)
    nodes.start()
    checkpoints = nodes.checkpointer("n1")
    for step in (1, 2):
        checkpoints.prepare(8 * N)
        checkpoints.save(step, tree(step))
        assert checkpoints.wait(step, DEADLINE_S)
    assert is_tree(checkpoints.restore(2), 2)
    requests = Control(nodes.client, nodes.endpoint, 0).requests("0", DEADLINE_S)
    notices = [request.body for _, request in requests if request.kind == "notices"]
    ours = [texts for texts in notices if " 5 MiB" in texts[0]]  # a larger file of an earlier test may still be cleared
    assert ours == [["n1 has no memory ready for a checkpoint of 5 MiB: No space left on device; saves take longer"]]


@pytest.mark.parametrize("awaited", ["receive", "receive_with_file"])
def test_a_program_that_is_interrupted_before_an_answer_can_save_once_more(
    nodes_of: MakeNodes, monkeypatch: pytest.MonkeyPatch, awaited: str
) -> None:
    nodes = nodes_of(1)
    nodes.start()
    checkpoints = nodes.checkpointer("n1")
    checkpoints.save(1, tree(1))

    answer = getattr(node_store, awaited)

    def interrupt(connection: socket.socket) -> object:
        if threading.current_thread() is threading.main_thread():
            raise SystemExit  # as a handler of SIGTERM does
        return answer(connection)

    with monkeypatch.context() as patch:
        patch.setattr(node_store, awaited, interrupt)
        with pytest.raises(SystemExit):
            checkpoints.save(2, tree(2))
    checkpoints.save(3, tree(3))
    checkpoints.save(4, tree(4))
    assert checkpoints.wait(4, DEADLINE_S)
    assert is_tree(checkpoints.restore(3), 3)
    assert is_tree(checkpoints.restore(4), 4)


def test_a_signal_handler_can_save_during_a_save(nodes_of: MakeNodes, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = nodes_of(1)
    nodes.start()
    checkpoints = nodes.checkpointer("n1")
    write_parts = mappings.write_parts

    def handle(*arguments: Any) -> bytes:
        monkeypatch.undo()
        checkpoints.save(2, tree(2))
        return write_parts(*arguments)

    monkeypatch.setattr(mappings, "write_parts", handle)
    checkpoints.save(1, tree(1))
    checkpoints.save(3, tree(3))
    for step in (2, 3):
        assert checkpoints.wait(step, DEADLINE_S)
        assert is_tree(checkpoints.restore(step), step)
