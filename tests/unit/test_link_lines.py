"""What the doctor prints of links: the slowest, those of one node in one line, and how many are left."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from laggard.collectors.links.reading import LinkReading
from laggard.resilience.command.link_check import LinkCheck
from laggard.resilience.command.link_lines import MAX_SHOWN, lines_on_links

N_BYTES = 3_100_000


def check_of(n_nodes: int, slow: dict[tuple[str, str], float], foreign: float = 0.0) -> LinkCheck:
    """Return a check in which a transfer takes 31 ms, and on slow links some times as long."""
    names = [f"node{number}" for number in range(1, n_nodes + 1)]
    links = [(a, b) for a in names for b in names if a != b]
    times = {(a, b): slow.get((a, b)) or slow.get((a, "")) or slow.get(("", b)) or 1.0 for a, b in links}
    return LinkCheck([LinkReading(1, *link, 0.031 * times[link], N_BYTES, foreign) for link in links])


def test_where_all_links_are_alike_there_is_one_line() -> None:
    assert lines_on_links(check_of(4, {})) == ["12 links measured: median 100 MB/s"]


def test_a_node_that_sends_slowly_has_one_line_with_its_partners_folded() -> None:
    assert lines_on_links(check_of(8, {("node2", ""): 10.0}))[0] == (
        "link node2 to node[1,3-8]: 10 MB/s, 10 times as slow as the median"
    )


def test_so_has_one_that_receives_slowly() -> None:
    assert lines_on_links(check_of(8, {("", "node2"): 10.0, ("node3", "node2"): 12.5}))[0] == (
        "link node[1,3-8] to node2: 8 to 10 MB/s, 10 to 12.5 times as slow as the median"
    )


def test_links_that_are_not_alike_have_lines_of_their_own_the_slowest_first() -> None:
    slow = {("node1", "node2"): 2.0, ("node1", "node3"): 10.0}
    assert lines_on_links(check_of(5, slow))[:-1] == [
        "link node1 to node3: 10 MB/s, 10 times as slow as the median",
        "link node1 to node2: 50 MB/s, 2 times as slow as the median",
    ]


def test_traffic_of_others_is_said() -> None:
    lines = lines_on_links(check_of(4, {("node1", "node2"): 2.0}, foreign=0.25))
    assert lines[0].endswith("times as slow as the median; others sent 25% as much")


def test_what_could_not_be_measured_comes_first_and_is_bounded_too() -> None:
    failures = {f"node{number} to node99": "no answer in time" for number in range(10, 30)}
    lines = lines_on_links(LinkCheck(check_of(2, {}).readings, failures))
    assert lines[0] == "link node10 to node99: no answer in time"
    assert lines[MAX_SHOWN] == "and 10 links more not measured"
    assert len(lines) == MAX_SHOWN + 2
    assert lines_on_links(LinkCheck(failures={"node2": "no answer"})) == ["link node2: no answer"]


@given(st.dictionaries(st.tuples(*[st.integers(1, 30).map("node{}".format)] * 2), st.floats(1.2, 50), max_size=60))
def test_it_prints_at_most_ten_and_counts_the_others(slow: dict[tuple[str, str], float]) -> None:
    slow = {link: times for link, times in slow.items() if link[0] != link[1]}
    lines = lines_on_links(check_of(30, slow))
    assert len(lines) <= MAX_SHOWN + 2
    if slow:
        worst = max(slow.values())
        assert f"{worst:.3g} times as slow" in lines[0]
    if lines[-2:-1] and lines[-2].startswith("and "):
        assert len(lines) == MAX_SHOWN + 2
