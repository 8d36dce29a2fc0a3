"""Questions go before samples, which wait for a bounded time."""

from __future__ import annotations

import socket
import sys
import threading
from pathlib import Path

import numpy as np

from laggard.telemetry.nodes.bus import Precedence
from laggard.telemetry.sending.batches import LENGTH, Batch, Ingest, _Batches, encode_batch
from tests.waiting import DEADLINE_S, wait_until

BATCH: Batch = {("loss", ()): (np.arange(2, dtype=np.int64), np.ones(2))}


def test_others_wait_until_all_work_has_ended() -> None:
    answering, went_on = Precedence(), threading.Event()

    def give_way() -> None:
        assert answering.give_way(DEADLINE_S)
        went_on.set()

    other = threading.Thread(target=give_way)
    answering.begin()
    answering.begin()
    other.start()
    answering.end()
    assert not answering.give_way(0.0)
    assert not went_on.is_set()
    answering.end()
    assert went_on.wait(DEADLINE_S)
    other.join(DEADLINE_S)


def test_others_wait_no_longer_than_they_say_and_not_at_all_for_nothing() -> None:
    answering = Precedence()
    assert answering.give_way(0.0)
    answering.begin()
    assert not answering.give_way(0.01)
    answering.end()
    assert answering.give_way(0.0)


def test_samples_that_give_way_stay_in_their_socket_whatever_they_are(tmp_path: Path) -> None:
    waits, may_go_on, taken = threading.Event(), threading.Event(), threading.Event()

    def give_way() -> None:
        waits.set()
        assert may_go_on.wait(DEADLINE_S)

    with Ingest(tmp_path / "node.sock", lambda _: taken.set(), give_way), socket.socket(socket.AF_UNIX) as sender:
        sender.connect(str(tmp_path / "node.sock"))
        sender.sendall(encode_batch(BATCH)[: LENGTH.size])
        assert waits.wait(DEADLINE_S)  # before the rest is there to be read
        may_go_on.set()
        sender.sendall(encode_batch(BATCH)[LENGTH.size :])
        assert taken.wait(DEADLINE_S)


def test_one_batch_is_taken_at_a_time_whoever_sends_it(tmp_path: Path) -> None:
    taken, may_go_on = [], threading.Event()

    def take(batch: Batch) -> None:
        taken.append(batch)
        assert may_go_on.wait(DEADLINE_S)

    path = tmp_path / "node.sock"
    with Ingest(path, take, lambda: None), socket.socket(socket.AF_UNIX) as one, socket.socket(socket.AF_UNIX) as other:
        for sender in (one, other):
            sender.connect(str(path))
            sender.sendall(encode_batch(BATCH))
        wait_until(lambda: len(taken) == 1 and n_waiting() == 1)
        may_go_on.set()
        wait_until(lambda: len(taken) == 2)


def n_waiting() -> int:
    """Return how many threads have read a batch and wait for their turn."""
    frames = sys._current_frames().values()
    return sum(frame.f_code is _Batches.handle.__code__ and "body" in frame.f_locals for frame in frames)
