"""The callback for Ray Train: what becomes of a verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

ray_train = pytest.importorskip(
    "laggard.ray_train", reason="Ray Train needs packages of its own: pip install 'ray[train]'", exc_type=ImportError
)

NODES = [
    {"NodeID": name, "Resources": {"CPU": 4.0, "GPU": 2.0}, "NodeManagerAddress": address, "Alive": True}
    for name, address in (("a1", "10.0.0.1"), ("b2", "10.0.0.2"), ("c3", "10.0.0.3"))
]


@dataclass
class Verdicts:
    """The verdicts of a launch, each list of them once, and what is asked of laggard."""

    left: list[dict[str, str]]
    asked: list[tuple[str, list[Any]]] = field(default_factory=list)

    @property
    def control(self) -> Verdicts:
        return self

    def ask(self, kind: str, body: Sequence[Any]) -> None:
        self.asked.append((kind, list(body)))

    def nodes(self) -> list[dict[str, Any]]:
        return NODES

    def read(self) -> dict[str, str]:
        return self.left.pop(0) if self.left else {}


class Worker:
    """A worker of Ray Train's, which remembers its preemptions."""

    def __init__(self, rank: int, node_id: str) -> None:
        self.metadata = SimpleNamespace(node_id=node_id)
        self.distributed_context = SimpleNamespace(world_rank=rank)
        self.told: list[Any] = []
        self.actor = SimpleNamespace(mark_preempt=SimpleNamespace(remote=self.told.append))


def running(n_workers: int, *verdicts: dict[str, str], elastic: bool = False) -> tuple[Any, list[Worker], Verdicts]:
    """Return a callback whose workers run, one on each node from the first, and the verdicts that it will read."""
    callback, found = ray_train.RayRestarts(grace_s=7), Verdicts([*verdicts])
    workers = [Worker(rank, str(NODES[rank % 3]["NodeID"])) for rank in range(n_workers)]
    scaling = SimpleNamespace(label_selector=None, elasticity_enabled=elastic)
    callback.after_controller_start(SimpleNamespace(scaling_config=scaling))
    callback._verdicts = found
    callback.before_worker_group_start(SimpleNamespace(num_workers=n_workers, resources_per_worker={"GPU": 1}))
    callback.after_worker_group_start(SimpleNamespace(get_workers=lambda: workers))
    return callback, workers, found


def selector(callback: Any, given: dict[str, str] | None = None, n_workers: int = 2) -> dict[str, str] | None:
    begin, scaling = callback.on_controller_start_worker_group, SimpleNamespace(label_selector=given)
    found: dict[str, str] | None = begin(scaling_config=scaling, num_workers=n_workers)
    return found


def test_a_verdict_is_a_preemption_to_all_workers_and_the_next_ones_are_kept_off_the_node() -> None:
    callback, workers, verdicts = running(2, {}, {"b2": "node2"})
    callback.after_worker_group_poll_status(None)
    assert not workers[0].told
    assert selector(callback) is None
    callback.after_worker_group_poll_status(None)
    assert [info.preempted_node_to_ranks for worker in workers for info in worker.told] == [{"b2": [1]}] * 2
    assert workers[0].told[0].deadline_ms == workers[1].told[0].deadline_ms
    assert selector(callback) == {"ray.io/node-id": "!in(b2)"}
    assert selector(callback, {"zone": "x"}) == {"zone": "x", "ray.io/node-id": "!in(b2)"}
    assert verdicts.asked == []


def test_a_verdict_that_is_repeated_restarts_nothing_again() -> None:
    callback, workers, _ = running(2, {"b2": "node2"}, {"b2": "node2"})
    callback.after_worker_group_poll_status(None)
    callback.after_worker_group_poll_status(None)
    assert len(workers[0].told) == 1


def test_a_slow_node_without_workers_restarts_nothing_and_gets_none_later() -> None:
    callback, workers, verdicts = running(2, {"c3": "node3"})
    callback.after_worker_group_poll_status(None)
    assert (workers[0].told, verdicts.asked) == ([], [])
    assert selector(callback) == {"ray.io/node-id": "!in(c3)"}


def test_a_slow_node_is_used_again_once_there_is_no_other() -> None:
    callback, _, _ = running(4, {"b2": "node2"})
    callback.after_worker_group_poll_status(None)
    assert selector(callback, n_workers=4) == {"ray.io/node-id": "!in(b2)"}
    assert selector(callback, n_workers=5) is None
    assert selector(callback, n_workers=4) is None


@pytest.mark.parametrize(("n_workers", "elastic"), [(5, False), (2, True)])
def test_without_room_elsewhere_or_with_an_elastic_number_laggard_is_asked_for_a_relaunch(
    n_workers: int, elastic: bool
) -> None:
    callback, workers, verdicts = running(n_workers, {"b2": "node2"}, elastic=elastic)
    callback.after_worker_group_poll_status(None)
    assert verdicts.asked == [("reboot", ["node2"])]
    assert workers[0].told == []
    assert selector(callback) is None


def test_a_program_that_was_started_without_laggard_is_left_alone() -> None:
    callback = ray_train.RayRestarts()
    scaling = SimpleNamespace(label_selector=None, elasticity_enabled=False)
    callback.after_controller_start(SimpleNamespace(scaling_config=scaling))
    callback.after_worker_group_poll_status(None)
    assert selector(callback) is None


def test_what_it_cannot_do_is_refused() -> None:
    with pytest.raises(ValueError, match="grace_s is -1"):
        ray_train.RayRestarts(grace_s=-1)
    scaling = SimpleNamespace(label_selector=[{"zone": "x"}], elasticity_enabled=False)
    with pytest.raises(TypeError, match="label_selector"):
        ray_train.RayRestarts().after_controller_start(SimpleNamespace(scaling_config=scaling))


@pytest.mark.parametrize(
    ("avoided", "worker", "expected"),
    [
        (set(), {"GPU": 1}, 6),
        ({"b2"}, {"GPU": 1}, 4),
        ({"b2"}, {"GPU": 1, "CPU": 3}, 2),
        ({"b2"}, {"GPU": 0, "CPU": 2}, 4),
        (set(), {"TPU": 1}, 0),
        ({"a1", "b2", "c3"}, {"CPU": 1}, 0),
    ],
)
def test_there_is_room_for_as_many_workers_as_each_node_can_take(
    avoided: set[str], worker: dict[str, float], expected: int
) -> None:
    assert ray_train.places(NODES, avoided, worker) == expected
