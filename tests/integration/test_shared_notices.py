"""What many share is seen in what a watcher sends, once and once more when it is over, and accuses nobody."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest

from laggard.collectors.links.collector import LinkReport
from laggard.collectors.links.prober import FIRST_BYTES
from laggard.collectors.links.reading import LinkReading
from laggard.collectors.links.symptoms import LinkSymptoms
from laggard.detectors.economics.restart_cost import RestartCost
from laggard.detectors.economics.restarts import Restarts
from laggard.detectors.judging.device_readings import DeviceReadings
from laggard.detectors.judging.judge import Analysis, Judge
from laggard.detectors.judging.link_readings import LinkReadings
from laggard.detectors.judging.rounds import Round
from laggard.detectors.links.slow_link_analysis import SlowLinkAnalysis
from laggard.detectors.verdict import Verdict
from tests.watched_launch import DEVICES, HOSTS, Entry, Looker, WatchedLaunch, entry, reading, watched_launch

ROUND_S = 10.0


class EveryTenSeconds(Judge):
    """Judges rounds as if they came every ten seconds."""

    def __init__(self, analysis: Analysis) -> None:
        super().__init__(analysis, Restarts(RestartCost(0.0)))
        self._now_s = 0.0

    def judge(self, readings: Round, now_s: float) -> list[Verdict]:
        del now_s
        self._now_s += ROUND_S
        return super().judge(readings, self._now_s)


@pytest.fixture(scope="module")
def launch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WatchedLaunch]:
    with watched_launch(tmp_path_factory.mktemp("watched")) as running:
        yield running


def devices(number: int) -> Sequence[Entry]:
    """Return a round in which all devices take four times as long, for 20 rounds."""
    return [reading(device, 0.01 * (4.0 if 20 <= number < 40 else 1.0)) for device in DEVICES]


def reports(number: int, slow: Callable[[str, str], bool], downs: int = 0) -> Sequence[Entry]:
    """Return a round in which some transfers take four times as long, for 20 rounds."""
    found = []
    for host in HOSTS:
        readings = [
            LinkReading(
                number, host, other, 0.03 * (4.0 if 20 <= number < 40 and slow(host, other) else 1.0), FIRST_BYTES, 0.0
            )
            for other in HOSTS
            if other != host
        ]
        symptoms = LinkSymptoms("eth0", risen={"carrier_down_count": downs if host == "node2" else 0})
        tags = LinkReport(tuple(readings), symptoms=symptoms).tags(host)
        found.append(entry(host, [1000.0 + number, [0.03], tags]))
    return found


def told(launch: WatchedLaunch, analysis: Analysis, rounds: Callable[[int], Sequence[Entry]]) -> list[str]:
    expected = DEVICES if isinstance(analysis, DeviceReadings) else [(host, "") for host in HOSTS]
    judge = EveryTenSeconds(analysis)
    judge.begin(launch.control.read_launch())
    looker = Looker(launch, judge, expected=expected)
    for number in range(60):
        looker.round(rounds(number))
    assert not any(kind == "verdicts" for kind, _ in looker.watcher._requests)
    return [text.removeprefix(f"{looker.metric}: ") for text in launch.told()]


def links() -> LinkReadings:
    return LinkReadings(SlowLinkAnalysis(HOSTS), lambda *_: None, 0.0)


def expected(who: str, whose: str) -> list[str]:
    return [
        f"{who} are 4.0 times as slow as before since 1970-01-01 00:03:30 UTC: {whose}",
        f"{who} are as fast as before again since 1970-01-01 00:06:50 UTC: they were 4.0 times as slow as that for"
        " 200 s",
    ]


def test_all_devices(launch: WatchedLaunch) -> None:
    found = told(launch, DeviceReadings(min_slowdown=1.05, false_alarm_budget=1e-4), devices)
    assert found == expected("all 8 devices", "no single device is at fault")


def test_the_whole_network(launch: WatchedLaunch) -> None:
    found = told(launch, links(), lambda number: reports(number, lambda *_: True))
    assert found == expected("all links", "what they share is at fault, such as an uplink")


def test_an_uplink_between_two_halves(launch: WatchedLaunch) -> None:
    found = told(
        launch, links(), lambda number: reports(number, lambda *ends: len({end in HOSTS[:2] for end in ends}) == 2)
    )
    who = "the links between {node1, node2} and {node3, node4}"
    assert found == expected(who, "what they share is at fault, such as an uplink")


def test_a_link_that_flaps(launch: WatchedLaunch) -> None:
    found = told(
        launch, links(), lambda number: reports(number, lambda *_: False, downs=3 if number in {20, 21} else 0)
    )
    assert found == ["node2's link went down 3 times in 10 s"]
