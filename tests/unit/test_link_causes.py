"""Why a link is slow, by what the kernel counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from laggard.collectors.links.interface_counters import CountersOfRound, carried_bytes, interface_of, read_counters
from laggard.collectors.links.symptoms import LinkSymptoms, cause_of_link, together

WELL = LinkSymptoms("eth0", 100_000, "full")


@pytest.fixture
def classes(tmp_path: Path) -> Path:
    """A machine with an Ethernet interface and an InfiniBand adapter behind another one."""
    files = {
        "net/eth0/speed": "1000\n",
        "net/eth0/duplex": "full\n",
        "net/eth0/carrier_down_count": "2\n",
        "net/eth0/statistics/rx_errors": "5\n",
        "net/ib0/speed": "-1\n",
        "net/ib0/statistics/rx_errors": "0\n",
        "net/ib0/device/infiniband/mlx5_0/ports/1/rate": "200 Gb/sec (4X HDR)\n",
        "net/ib0/device/infiniband/mlx5_0/ports/1/counters/symbol_error": "65535\n",
        "net/ib0/device/infiniband/mlx5_0/ports/1/counters/link_downed": "3\n",
        "net/ib0/device/infiniband/mlx5_0/ports/1/counters/port_xmit_wait": "N/A (no PMA)\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_counters_are_read_and_those_that_are_not_there_are_left_out(classes: Path) -> None:
    assert read_counters("eth0", classes) == {"rx_errors": 5, "carrier_down_count": 2}
    assert read_counters("ib0", classes) == {"rx_errors": 0, "symbol_error": 65535, "link_downed": 3}
    assert read_counters("", classes) == read_counters("eth9", classes) == {}


def test_the_bytes_that_an_interface_carried_are_counted(tmp_path: Path) -> None:
    (tmp_path / "dev").write_text(
        "Inter-|   Receive                            |  Transmit\n"
        " face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop\n"
        "    lo: 7 1 0 0 0 0 0 0 7 1 0 0 0 0 0 0\n"
        " eth0:2000 9 0 0 0 0 0 0 1000 8 0 0 0 0 0 0\n"
    )
    assert carried_bytes("eth0", "rx", tmp_path / "dev") == 2000
    assert carried_bytes("eth0", "tx", tmp_path / "dev") == 1000
    assert carried_bytes("eth9", "tx", tmp_path / "dev") == carried_bytes("", "tx") == 0


def test_symptoms_are_what_has_risen_since_the_round_before(classes: Path) -> None:
    counters = CountersOfRound("eth0", classes)
    (classes / "net/eth0/statistics/rx_errors").write_text("12\n")
    assert counters.symptoms(4) == LinkSymptoms("eth0", 1000, "full", {"rx_errors": 7, "tcp_retransmissions": 4})
    (classes / "net/eth0/statistics/rx_errors").write_text("0\n")  # the driver was loaded again
    assert counters.symptoms(0) == LinkSymptoms("eth0", 1000, "full", {})


def test_the_rate_of_an_adapter_is_that_of_its_port(classes: Path) -> None:
    symptoms = CountersOfRound("ib0", classes).symptoms(0)
    assert (symptoms.speed_mbps, symptoms.duplex) == (200_000, "")


def test_loopback_is_no_interface() -> None:
    assert interface_of("127.0.0.1") == ""
    assert interface_of("192.0.2.1") == ""


@pytest.mark.parametrize(
    ("speed_mbps", "duplex", "risen", "cause"),
    [
        (1000, "full", {"symbol_error": 99}, "link speed 1000 Mb/s where its peers have 100000"),
        (100_000, "half", {}, "the link is half duplex"),
        (100_000, "full", {"link_downed": 1, "rx_errors": 4}, "cable or port: the link went down 1 times in 60 s"),
        (100_000, "full", {"carrier_down_count": 2}, "cable or port: the link went down 2 times in 60 s"),
        (100_000, "full", {"symbol_error": 2}, "unknown"),
        (100_000, "full", {"symbol_error": 3}, "cable or optics: 3 symbol errors in 60 s"),
        (100_000, "full", {"link_error_recovery": 6}, "the link retrained 6 times in 60 s"),
        (
            100_000,
            "full",
            {"rx_crc_errors": 1, "rx_errors": 1},
            "cable or optics: 1 packets with wrong checksums in 60 s",
        ),
        (100_000, "full", {"port_rcv_errors": 600}, "unknown"),
        (
            100_000,
            "full",
            {"port_rcv_errors": 601},
            "the other end or the cable: 601 packets received with errors in 60 s",
        ),
        (100_000, "full", {"port_xmit_wait": 7}, "congestion: data waited for 7 ticks at the port in 60 s"),
        (100_000, "full", {"tcp_retransmissions": 9}, "TCP had to send 9 segments of the probes again in 60 s"),
        (0, "", {}, "unknown"),
        (200_000, "full", {}, "unknown"),
    ],
)
def test_the_first_rule_that_holds_gives_the_cause(
    speed_mbps: int, duplex: str, risen: dict[str, int], cause: str
) -> None:
    symptoms = LinkSymptoms("eth0", speed_mbps, duplex, risen)
    assert str(cause_of_link(symptoms, [WELL, WELL, LinkSymptoms()], 60.0)) == cause


@pytest.mark.parametrize(
    ("counter", "most", "words"),
    [
        ("link_downed", 0, "the link went down 1 times"),
        ("local_link_integrity_errors", 0, "1 link integrity errors"),
        ("link_error_recovery", 5, "the link retrained 6 times"),
        ("tx_carrier_errors", 0, "1 carrier errors"),
        ("rx_crc_errors", 0, "1 packets with wrong checksums"),
        ("rx_errors", 0, "1 packets received with errors"),
        ("tx_errors", 0, "1 packets could not be sent"),
        ("collisions", 0, "1 collisions"),
        ("port_xmit_discards", 6000, "the port discarded 6001 packets"),
        ("port_xmit_wait", 0, "data waited for 1 ticks"),
        ("rx_dropped", 60, "61 received packets were dropped"),
        ("tx_dropped", 60, "61 packets were dropped before they were sent"),
        ("tcp_retransmissions", 0, "TCP had to send 1 segments"),
    ],
)
def test_each_counter_may_rise_by_so_much_in_a_minute_and_no_more(counter: str, most: int, words: str) -> None:
    causes = [
        str(cause_of_link(LinkSymptoms("eth0", 100_000, "full", {counter: risen}), [WELL], 60.0))
        for risen in (most, most + 1)
    ]
    assert causes[0] == "unknown"
    assert words in causes[1]
    assert causes[1].endswith(" in 60 s")


def test_nothing_is_said_of_a_speed_that_no_peer_has() -> None:
    assert str(cause_of_link(LinkSymptoms("eth0", 1000), [LinkSymptoms()], 60.0)) == "unknown"


@pytest.mark.parametrize(
    ("speed_mbps", "peers_mbps", "cause"),
    [
        (1, [10], "link speed 1 Mb/s where its peers have 10"),
        (10, [10], "unknown"),
        (10, [10, 10, 1000], "unknown"),
        (10, [10, 1000, 1000], "link speed 10 Mb/s where its peers have 1000"),
        (10, [0, 0, 0, 1000], "link speed 10 Mb/s where its peers have 1000"),
    ],
)
def test_a_link_is_slow_by_its_speed_where_most_peers_of_a_known_speed_have_more(
    speed_mbps: int, peers_mbps: list[int], cause: str
) -> None:
    peers = [LinkSymptoms("eth0", each) for each in peers_mbps]
    assert str(cause_of_link(LinkSymptoms("eth0", speed_mbps), peers, 60.0)) == cause


def test_an_interface_of_which_nothing_is_known_has_no_cause() -> None:
    assert str(cause_of_link(LinkSymptoms(), [WELL], 60.0)) == "unknown"


@pytest.mark.parametrize(("risen", "is_cause"), [(120, False), (121, True)])
def test_an_hour_may_have_120_symbol_errors(risen: int, *, is_cause: bool) -> None:
    cause = str(cause_of_link(LinkSymptoms("eth0", risen={"symbol_error": risen}), [], 3600.0))
    assert (cause == "cable or optics: 121 symbol errors in 3600 s") == is_cause


def test_rises_of_several_rounds_add_up_and_the_newest_settings_count() -> None:
    rounds = [
        LinkSymptoms("eth0", 100_000, "full", {"symbol_error": 1}),
        LinkSymptoms("eth0", 1000, "half", {}),
        LinkSymptoms("eth1", 10_000, "full", {"symbol_error": 2, "rx_errors": 1}),
    ]
    assert together(rounds) == LinkSymptoms("eth1", 10_000, "full", {"symbol_error": 3, "rx_errors": 1})
    assert together(rounds[:1]) == rounds[0]
