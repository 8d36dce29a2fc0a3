"""The matrix of links in ``laggard top``: it fits any terminal, is read with the keys, and needs no colour."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from laggard.resilience.views.links import against_median, cell_names, link_grid, matrix_that_fits
from laggard.resilience.views.screen import View, body_of
from laggard.resilience.views.snapshot import Snapshot
from laggard.resilience.views.top import after_key
from tests.unit.test_views import printed, snapshot_of

SLOW = "node2"


def linked(n_nodes: int, *, leaves: int = 0, n_partners: int = 8, accused: bool = True) -> Snapshot:
    """Return a job in which node2 sends ten times as slowly as the others, and is accused of that."""
    names = [f"node{number}" for number in range(1, n_nodes + 1)]
    links = {
        (name, names[(at + step) % n_nodes]): 0.31 if name == SLOW else 0.031
        for at, name in enumerate(names)
        for step in range(1, min(n_partners, n_nodes - 1) + 1)
    }
    snapshot = snapshot_of()
    last = snapshot.timeline.verdicts[-1]
    verdict = replace(last, of=replace(last.of, host=SLOW, gpu=None))
    timeline = replace(snapshot.timeline, verdicts=(verdict,) if accused else ())
    below = {name: f"leaf{at % leaves}" for at, name in enumerate(names)} if leaves else {}
    return replace(snapshot, timeline=timeline, links=links, leaves=below)


def test_l_opens_the_matrix_and_the_arrows_read_it() -> None:
    snapshot = linked(4)
    view = View()
    said = []
    for key in ("l", "down", "right"):
        following = after_key(key, view, body_of(snapshot, view, 80, 24))
        assert following is not None
        view = following
        said.append(printed(snapshot, view, 80, 24)[3])

    assert view.page == "links"
    assert said[0].startswith("node1 → node2: 31 ms, the median; node2 was found slow")
    assert said[1].startswith("node2 → node1: 310 ms, 10 times the median; node2 was found slow")
    assert said[2].startswith("node2 → node3: 310 ms, 10 times the median; node2 was found slow")


def test_rows_send_and_columns_receive_and_every_cell_has_a_sign_that_needs_no_colour() -> None:
    snapshot = linked(4)
    del snapshot.links["node3", "node4"]  # type: ignore[attr-defined]

    lines = printed(snapshot, View("links"), 80, 24)

    assert "11 links, median 31 ms; rows send, columns receive" in lines[2]
    assert [line.split() for line in lines[4:9]] == [
        ["1", "2", "3", "4"],
        ["1", "node1", "·", "·", "·"],
        ["2", "node2", "▸", "@", "@", "@"],
        ["3", "node3", "·", "·", "?"],
        ["4", "node4", "·", "·", "·"],
    ]
    assert "?  never met" in "\n".join(lines)


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 40), (200, 60), (60, 20), (40, 8)])
@pytest.mark.parametrize("n_nodes", [2, 16, 65, 1000])
@pytest.mark.parametrize("leaves", [0, 7])
def test_the_matrix_fits_every_terminal(width: int, height: int, n_nodes: int, leaves: int) -> None:
    snapshot = linked(n_nodes, leaves=leaves)

    lines = printed(snapshot, View("links"), width, height)
    body = body_of(snapshot, View("links"), width, height)

    assert len(lines) == height
    assert max(cell_len(line) for line in lines) <= width
    assert body.grid.height <= max(body.room, 2)
    assert lines[-1].rstrip().endswith("? help  q quit")


def test_a_thousand_nodes_are_shown_as_leaves_or_else_the_slowest_comes_first() -> None:
    with_leaves = "\n".join(printed(linked(1000, leaves=12), View("links"), 80, 24))
    without = printed(linked(1000), View("links"), 80, 24)

    assert "leaf11" in with_leaves
    assert "left out" not in with_leaves
    assert "8,000 links" in without[2]
    assert "nodes left out" in without[2]
    assert without[5].split()[:3] == ["1", "node2", "▸"]


def test_the_leaf_of_a_slow_node_is_marked_and_read_with_its_name() -> None:
    lines = printed(linked(1000, leaves=12), View("links"), 80, 24)

    assert ["2", "leaf1", "▸"] in [line.split()[:3] for line in lines]
    assert lines[3].startswith("below leaf0: 31 ms, the median")


def test_a_search_finds_a_link() -> None:
    snapshot = linked(4)
    view = View("links")
    for key in "/node3 → node1":
        following = after_key(key, view, body_of(snapshot, view, 80, 24))
        assert following is not None
        view = following

    assert printed(snapshot, view, 80, 24)[3].startswith("node3 → node1: 31 ms")


def test_without_readings_it_says_how_to_get_them() -> None:
    assert "--detect=slow-link" in "\n".join(printed(snapshot_of(), View("links"), 80, 24))


def test_names_cannot_steer_the_terminal() -> None:
    snapshot = replace(linked(2, accused=False), links={("a\x1b[31m", "b"): 0.03, ("b", "a\x1b[31m"): 0.03})

    assert "\x1b" not in "\n".join(printed(snapshot, View("links"), 80, 24))


@pytest.mark.parametrize(
    ("ratio", "words"),
    [
        (10.0, "10 times the median"),
        (1.5, "1.5 times the median"),
        (99.6, "100 times the median"),
        (1.001, "the median"),
        (1.3, "30 % above the median"),
        (0.8, "20 % below the median"),
    ],
)
def test_a_time_is_said_against_the_median(ratio: float, words: str) -> None:
    assert against_median(ratio) == words


@given(st.integers(2, 80), st.integers(0, 9), st.integers(40, 240), st.integers(3, 80))
def test_every_cell_has_a_place_of_its_own_within_the_terminal(
    n_nodes: int, leaves: int, width: int, room: int
) -> None:
    matrix = matrix_that_fits(linked(n_nodes, leaves=leaves), width, room)
    assert matrix is not None
    grid = link_grid(matrix, {})

    assert len(grid.places) == len(set(grid.places)) == len(cell_names(matrix))
    assert all(0 < line < grid.height <= room and column + grid.cell <= width for line, column in grid.places)
    names = {(line, column + at) for line, column, text in grid.labels for at in range(len(text))}
    assert not names & set(grid.places)
