"""Which GPUs the virtual nodes of one machine see."""

from __future__ import annotations

from pathlib import Path

from laggard.resilience.allocation.local import LocalAllocation


def visible(n_nodes: int, *gpus: str) -> list[str | None]:
    allocation = LocalAllocation(n_nodes, 0, gpus)
    return [allocation.environment(node, Path()).get("CUDA_VISIBLE_DEVICES") for node in allocation.nodes]


def test_gpus_are_dealt_out_and_a_node_without_any_sees_none() -> None:
    assert visible(2, "0", "1", "2") == ["0,2", "1"]
    assert visible(2, "0") == ["0", ""]


def test_where_no_gpu_was_found_the_program_sees_what_it_would_without_us() -> None:
    assert visible(1) == [None]
    assert visible(2) == [None, None]


def test_virtual_devices_have_their_own_names_whatever_was_visible_before() -> None:
    allocation = LocalAllocation(2, 3)
    names = [allocation.environment(node, Path())["CUDA_VISIBLE_DEVICES"] for node in allocation.nodes]
    assert names == [",".join(node.devices) for node in allocation.nodes] == ["0,1,2"] * 2
