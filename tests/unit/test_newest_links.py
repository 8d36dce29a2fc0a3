"""The newest reading of each link in a job's record: one a launch, of transfers of one size, and not too many."""

from __future__ import annotations

from laggard.collectors.links.collector import LINK_TIME, LinkReport
from laggard.collectors.links.reading import LinkReading
from laggard.kvstore.series.streams import Sample
from laggard.resilience.record.newest_links import MAX_LINKS, LinkLog
from laggard.telemetry.link_matrix import LEAF, SEND_TIME

MIB = 1 << 20


def sample(
    host: str, peer: str, seconds: float, *, number: int = 0, launch: int = 0, n_bytes: int = MIB, leaf: str = ""
) -> Sample:
    reading = LinkReading(number, host, peer, seconds, n_bytes, 0.0)
    tags = LinkReport((reading,), launch=launch, leaf=leaf).tags(host)
    return Sample(LINK_TIME, 1000.0 + 10 * launch + number, (seconds,), tags)


def log_of(*samples: Sample, max_links: int = MAX_LINKS) -> LinkLog:
    log = LinkLog(max_links)
    for each in samples:
        log.add(each)
    return log


def newest(log: LinkLog) -> dict[tuple[str, str], list[float]]:
    """Return the times of each link, one of each launch."""
    found = (each for each in log.series() if each.metric == SEND_TIME)
    return {(each.tags["host"], each.tags["peer"]): each.values.tolist() for each in found}


def test_of_each_link_the_newest_reading_is_kept() -> None:
    log = log_of(sample("a", "b", 0.03), sample("b", "a", 0.04), sample("a", "b", 0.05, number=1))

    assert newest(log) == {("a", "b"): [0.05], ("b", "a"): [0.04]}


def test_once_transfers_have_another_size_earlier_readings_count_no_more_even_if_they_come_late() -> None:
    before = sample("a", "b", 0.001), sample("b", "a", 0.001)
    after = sample("a", "b", 0.03, number=1, n_bytes=32 * MIB)

    assert newest(log_of(before[0], after, before[1])) == {("a", "b"): [0.03]}


def test_the_record_has_one_sample_of_each_link_in_each_launch() -> None:
    log = log_of(
        sample("a", "b", 0.03),
        sample("a", "b", 0.04, number=1, leaf="leaf1"),
        sample("a", "b", 0.05, launch=1),
    )

    found = {(each.metric, tuple(each.tags.items())): each for each in log.series()}
    link = found[SEND_TIME, (("host", "a"), ("peer", "b"))]
    assert link.times_us.tolist() == [1_001_000_000, 1_010_000_000]
    assert link.values.tolist() == [0.04, 0.05]
    leaf = found[LEAF, (("host", "a"), ("leaf", "leaf1"))]
    assert (leaf.times_us.tolist(), leaf.values.tolist()) == ([1_001_000_000], [1.0])
    assert len(found) == 2


def test_of_too_many_links_those_of_the_oldest_launches_go() -> None:
    samples = (sample("a", f"node{peer}", 0.03, launch=launch) for launch in range(4) for peer in range(2))
    log = log_of(*samples, max_links=5)

    times_s = {time_us // 1_000_000 for each in log.series() for time_us in each.times_us.tolist()}
    assert times_s == {1020, 1030}, "of the launches 2 and 3"
    assert [len(seconds) for seconds in newest(log).values()] == [2, 2]

    for peer in range(9):
        log.add(sample("b", f"node{peer}", 0.03, launch=4))
    assert len(newest(log)) == 5, "one launch alone has no more either"


def test_as_many_launches_are_kept_as_have_room_together() -> None:
    samples = [sample("a", f"node{peer}", 0.03, launch=launch) for launch in range(2) for peer in range(2)]

    assert [len(seconds) for seconds in newest(log_of(*samples, max_links=4)).values()] == [2, 2]
    assert [len(seconds) for seconds in newest(log_of(*samples, max_links=3)).values()] == [1, 1]


def test_a_link_that_is_known_has_its_newest_reading_although_there_is_room_for_no_other() -> None:
    log = log_of(sample("a", "b", 0.03), sample("a", "b", 0.05, number=1), sample("a", "c", 0.04), max_links=1)

    assert newest(log) == {("a", "b"): [0.05]}
