"""What detectors say: numbers, slow devices and links, what was decided about a restart, and notices."""

from __future__ import annotations

import pytest

from laggard.collectors.causes import UNKNOWN, Cause
from laggard.detectors import wording
from laggard.detectors.evidence import Found, Price, Reason, Slow, SlowLink, StillSlow, Weighed, WellAgain
from laggard.detectors.notices import (
    Answering,
    Blind,
    Flapping,
    Group,
    GroupSlower,
    LinkNotice,
    LinksSlower,
    Noisy,
    Notice,
    Shift,
    Silent,
)
from laggard.detectors.verdict import Evidence

GAPS = "; gaps of less than 10 min are not reported for an hour"
MORE = "; more of the same is not reported for a day"
NOON_S = 1_700_049_600.0  # 2023-11-15 12:00:00 UTC
GIVEN = Price(300.0)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 s"),
        (5.54, "5.5 s"),
        (9.94, "9.9 s"),
        (9.96, "10 s"),
        (599.4, "599 s"),
        (599.6, "10 min"),
        (5969.0, "99 min"),
        (5971.0, "1.7 h"),
    ],
)
def test_a_length_of_time_has_the_unit_that_suits_it(seconds: float, text: str) -> None:
    assert wording.span(seconds) == text


@pytest.mark.parametrize(
    ("slowdown", "text"),
    [
        (1.052, "5.2 % slower than"),
        (1.099, "9.9 % slower than"),
        (1.124, "12 % slower than"),
        (2.99, "199 % slower than"),
        (3.0, "3.0 times as slow as"),
    ],
)
def test_a_slowdown_is_a_percentage_up_to_three_times(slowdown: float, text: str) -> None:
    assert wording.how_slow(slowdown) == text


@pytest.mark.parametrize(
    ("price", "text"),
    [
        (GIVEN, "as given"),
        (Price(60.0, "assumed"), "assumed, since the program has shown no progress yet"),
        (Price(90.0, "measured", 60.0, 30.0), "60 s to the first progress, 30 s of work assumed to be lost"),
        (Price(90.0, "measured", 60.0, 30.0, "commit"), "60 s to the first progress, 30 s since the last commit"),
        (
            Price(90.0, "measured", 60.0, 30.0, "checkpoint"),
            "60 s to the first progress, 30 s since the last checkpoint",
        ),
        (Price(90.0, "measured", 90.0, 0.0, "done again"), "90 s until a relaunch was as far as the launch before"),
        (
            Price(30.0, "measured", 5.0, 1.0, "commit", is_least=True),
            "the least that is assumed; 5 s to the first progress, 1 s since the last commit",
        ),
    ],
)
def test_it_is_said_how_the_cost_of_a_restart_is_known(price: Price, text: str) -> None:
    assert wording.known_from(price) == text


def said(found: Found, **more: object) -> str:
    return wording.finding(Evidence("n1", "0", found, **more))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (Slow(1.2, "peers", 1), "20 % slower than its only peer"),
        (Slow(1.2, "own past", 7), "20 % slower than its own past and than 7 peers"),
        (
            Slow(1.2, "other nodes", 3, n_devices=8, are_together=True),
            "20 % slower than the other 3 nodes, by its 8 devices together",
        ),
        (Slow(1.2, "peers", 7, n_devices=2), "20 % slower than its 7 peers, all its 2 devices"),
        (Slow(1.2, "peers", 7, since_s=NOON_S, now_s=NOON_S + 60), "20 % slower than its 7 peers since 12:00:00"),
        (
            Slow(1.2, "peers", 7, since_s=NOON_S, now_s=NOON_S + 86_400),
            "20 % slower than its 7 peers since 2023-11-15 12:00:00",
        ),
        (Slow(1.2, "peers", 7, share=0.25), "20 % slower than its 7 peers, at times: in 25 % of its last rounds"),
        (
            Slow(1.2, "own past", 55, 4, 41_234.0),
            "20 % slower than its own past and than 55 peers for 4 rounds; by chance less than once in 41,000 jobs",
        ),
        (
            Slow(1.2, "peers", 7, 1, 123.0, since_s=NOON_S, now_s=NOON_S),
            "20 % slower than its 7 peers since 12:00:00, for 1 round; by chance less than once in 120 jobs",
        ),
        (
            Slow(1.2, "peers", 7, 3, 3.14e6, n_devices=2),
            "20 % slower than its 7 peers, all its 2 devices, for 3 rounds; "
            "by chance less than once in 3.1 million jobs",
        ),
        (
            Slow(1.2, "peers", 7, 3, 1e12),
            "20 % slower than its 7 peers for 3 rounds; by chance less than once in a million million jobs",
        ),
        (StillSlow(1.5), "still slow: at least 50 % slower"),
        (StillSlow(2.99, at_times=True), "still slow at times: at least 199 % slower"),
        (StillSlow(3.0), "still slow: at least 3.0 times as slow as usual"),
        (
            WellAgain(90.0, 30.0, 1, 30.0, expected=False),
            "was slow for 90 s, 30 s lost" + MORE,
        ),
        (
            WellAgain(90.0, 30.0, 2, 70.0, expected=False),
            "was slow for 90 s, 30 s lost; the second time, 70 s lost in all" + MORE,
        ),
        (
            WellAgain(90.0, 30.0, 3, 70.0, expected=True),
            "was slow for 90 s, 30 s lost; the third time, 70 s lost in all; looks like a phase" + MORE,
        ),
        (
            WellAgain(90.0, 30.0, 4, 70.0, expected=True),
            "was slow for 90 s, 30 s lost; the 4th time, 70 s lost in all; looks like a phase" + MORE,
        ),
    ],
)
def test_what_was_found_of_a_device_is_one_sentence(found: Found, text: str) -> None:
    assert said(found) == text


LOST = "45 s lost in 90 s"
COSTS = "a restart costs 300 s (as given)"


@pytest.mark.parametrize(
    ("weighed", "text"),
    [
        (Weighed(GIVEN, 45, 90, 0.0, NOON_S), f"; {LOST}; {COSTS}: now"),
        (
            Weighed(GIVEN, 45, 90, 0.0, NOON_S, Reason("made anyway")),
            f"; {LOST}; {COSTS}: now, since a restart is made anyway",
        ),
        (
            Weighed(GIVEN, 45, 90, None, NOON_S, Reason("a phase")),
            f"; {LOST}; {COSTS}: no restart, since it looks like a phase, which ends by itself",
        ),
        (Weighed(GIVEN, 45, 90, 86_399.0, NOON_S), f"; {LOST}; {COSTS}: not yet, at 11:59:59"),
        (Weighed(GIVEN, 45, 90, 86_400.0, NOON_S), f"; {LOST}; {COSTS}: not yet, on 2023-11-16"),
        (Weighed(Price(0.0), 45, 90, 0.0, NOON_S), ""),
        (Weighed(Price(0.0), 45, 90, None, NOON_S), ""),
        (
            Weighed(Price(0.0), 45, 90, None, NOON_S, Reason("busier", (88.0, 80.0))),
            "; no restart, since it was hardly slower than its peers when idle, and is busier than they are"
            " (88 % against 80 %)",
        ),
    ],
)
def test_what_was_decided_about_a_restart_is_said_with_its_reason(weighed: Weighed, text: str) -> None:
    assert said(Slow(1.2, "peers", 7), weighed=weighed) == f"20 % slower than its 7 peers{text}"


def test_of_what_is_still_slow_the_loss_is_said_first() -> None:
    weighed = Weighed(GIVEN, 45, 90, 60.0, NOON_S)
    assert (
        said(StillSlow(1.5), weighed=weighed)
        == f"still slow: at least 50 % slower, {LOST}; {COSTS}: not yet, at 12:01:00"
    )


def test_of_ranks_the_section_is_named() -> None:
    assert said(Slow(1.2, "peers", 7, n_devices=4), section="forward") == (
        "20 % slower than its 7 peers, in the section forward, all its 4 ranks"
    )


@pytest.mark.parametrize(
    ("link", "text"),
    [
        (
            SlowLink("node", ("n1",), "sends", 9.84, 1, 1),
            "n1 sends 9.8 times as slow as its only peer (to all its partners), 1 round",
        ),
        (
            SlowLink("node", ("n1",), "sends", 1.3, 2, 4),
            "n1 sends 30 % slower than its 2 peers (to all its partners), 4 rounds; or both of its links are slow",
        ),
        (
            SlowLink("leaf", ("l1",), "both", 1.3, 3, 4),
            "leaf l1 sends and receives 30 % slower than its 3 peers (to and from all its partners), 4 rounds",
        ),
        (
            SlowLink("pair", ("n1", "n2"), "both", 1.3, 7, 4),
            "n1 to n2 and back: 30 % slower than the other transfers of both, 4 rounds",
        ),
        (
            SlowLink("pair", ("n1", "n2"), "", 1.3, 7, 4),
            "n1 to n2: 30 % slower than the other transfers of both, 4 rounds",
        ),
        (
            SlowLink("link", ("n1", "n2"), "", 1.3, 1, 4),
            "n1 to n2: 30 % slower than before or the other way, 4 rounds; either end may be at fault",
        ),
    ],
)
def test_a_slow_link_is_named_with_its_direction(link: SlowLink, text: str) -> None:
    assert wording.slow_link(link) == text
    assert wording.notice(LinkNotice(link, (UNKNOWN,))) == text
    causes = (Cause("heat"), UNKNOWN, Cause("cable"))
    assert wording.notice(LinkNotice(link, causes)) == f"{text}; likely cause: cable, or heat"


ALL, SOME = Group(("n1", "0"), 8, 8), Group(("n1", "0"), 4, 8)


@pytest.mark.parametrize(
    ("about", "text"),
    [
        (
            GroupSlower(ALL, Shift(1.2, None)),
            "all 8 devices are 20 % slower than before: no single device is at fault",
        ),
        (
            GroupSlower(Group(("n1", "rank 3"), 4, 8, are_ranks=True), Shift(1.2, NOON_S)),
            "the 4 ranks like rank 3 on n1 are 20 % slower than before since 2023-11-15 12:00:00 UTC:"
            " no single rank is at fault",
        ),
        (
            GroupSlower(SOME, Shift(1.2, NOON_S, NOON_S + 3600, is_over=True)),
            "the 4 devices like n1 gpu 0 are as fast as before again since 2023-11-15 13:00:00 UTC:"
            " they were 20 % slower than that for 60 min",
        ),
        (
            GroupSlower(SOME, Shift(3.2, None, is_over=True)),
            "the 4 devices like n1 gpu 0 are as fast as before again: they were 3.2 times as slow as that",
        ),
        (
            LinksSlower((), Shift(3.0, NOON_S)),
            "all links are 3.0 times as slow as before since 2023-11-15 12:00:00 UTC:"
            " what they share is at fault, such as an uplink",
        ),
        (
            LinksSlower((("n1", "n2"), tuple(f"n{number}" for number in range(3, 12))), Shift(3.1, None)),
            "the links between {n1, n2} and {n3, n[4-11]} are 3.1 times as slow as before:"
            " what they share is at fault, such as an uplink",
        ),
        (Flapping("n2", 6, 60.0), "n2's link went down 6 times in 60 s"),
        (Flapping("n2", 36, 90.0, 600.0), "n2's link has stayed up for 10 min: it went down 36 times in 90 s"),
        (
            Noisy(ALL, 0.0123, 1.08, lasts=False),
            "all 8 devices: readings scatter by 1.2 % from round to round, so a slowdown by less than 8 % is found"
            " late, or not at all",
        ),
        (
            Noisy(ALL, 0.0123, 1.08, lasts=True),
            "all 8 devices: readings wander by 1.2 % over many rounds, so only a slowdown by more than 8 % can be told"
            " from noise",
        ),
        (Silent((("n1", "0"), ("n2", ""))), "no good reading from n1 gpu 0, n2 for three rounds"),
        (Silent((("n1", "0"),), "no CUDA"), "no good reading from n1 gpu 0 for three rounds: no CUDA"),
        (Answering((("n1", "0"),)), "n1 gpu 0 gives readings again" + GAPS),
        (Answering((("n1", "0"), ("n2", "1"))), "n1 gpu 0, n2 gpu 1 give readings again" + GAPS),
        (Blind(), "no reading so far"),
        (Blind("level 0"), "no reading so far: level 0"),
    ],
)
def test_a_notice_says_what_a_user_should_know(about: Notice, text: str) -> None:
    assert wording.notice(about) == text
