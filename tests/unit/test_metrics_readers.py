"""What readers make of a driver's answers, when a loop reads, and the rows of the devices that are read."""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pynvml
import pytest
import redis

from laggard.collectors.device import VIRTUAL_DEVICE_DIR, VIRTUAL_DEVICES
from laggard.collectors.errors import DeviceLostError
from laggard.collectors.metrics.gpu import VirtualReader, device_readers
from laggard.collectors.metrics.node import NodeReader, control_group_of
from laggard.collectors.metrics.nvml import NvmlReader, field_values, nvml_handle, nvml_readers
from laggard.collectors.metrics.process import Collectors
from laggard.collectors.metrics.reading_loop import Reading, ReadingLoop
from laggard.kvstore.client.environment import JobEnvironment
from laggard.kvstore.series.sample_store import SampleStore
from laggard.telemetry.events import Event
from laggard.telemetry.settings import TelemetrySettings


def by_name(readings: Iterator[Reading]) -> dict[str, float]:
    return {reading.metric: reading.value for reading in readings}


# -- when a loop reads -------------------------------------------------------------------------------------------------


class Clock:
    """A clock that only waits and readings move; and the end of the loop."""

    def __init__(self, now_s: float, until_s: float, late_s: Mapping[int, float]) -> None:
        self.now_s, self._until_s, self._late_s = now_s, until_s, late_s
        self._waits = 0

    def time(self) -> float:
        return self.now_s

    def monotonic(self) -> float:
        return self.now_s - 50

    def wait(self, seconds: float) -> bool:
        self.now_s += seconds + self._late_s.get(self._waits, 0.0)
        self._waits += 1
        return self.now_s > self._until_s


class Kept:
    """A store that keeps what it is given as it is."""

    def __init__(self) -> None:
        self.added: list[tuple[str, Mapping[str, str], int, float]] = []

    def add(self, metric: str, tags: Mapping[str, str], time_us: int, value: float) -> None:
        self.added.append((metric, tags, time_us, value))

    @property
    def seconds(self) -> list[float]:
        return [round(time_us / 1e6, 6) for _, _, time_us, _ in self.added]


def run_loop(
    read: Callable[[Clock, int], None] = lambda *_: None,
    until_s: float = 104.5,
    late_s: Mapping[int, float] | None = None,
    turn: int = 0,
) -> tuple[Kept, ReadingLoop, Clock, list[float]]:
    clock, kept, begun = Clock(100.25, until_s, late_s or {}), Kept(), []

    def reading() -> Iterator[Reading]:
        begun.append(round(clock.now_s, 6))
        assert loop.pace.begun_s == clock.monotonic()
        read(clock, len(begun))
        yield Reading("m", len(begun), {"pid": "1"})

    clocks: dict[str, Any] = {"unix_clock": clock.time, "clock": clock.monotonic, "ended": clock}
    loop = ReadingLoop("x", reading, 1.0, kept, {"host": "a"}, place=turn, **clocks)  # type: ignore[arg-type]
    loop.run()
    assert loop.pace.begun_s is None
    return kept, loop, clock, begun


def test_a_loop_reads_at_every_tick_and_stamps_with_the_tick() -> None:
    kept, loop, _, begun = run_loop(turn=2)

    assert begun == [101.006, 102.006, 103.006, 104.006]  # its turn is the third, 3 ms each
    assert kept.added[0] == ("m", {"host": "a", "pid": "1"}, 101_000_000, 1)
    assert kept.seconds == [101, 102, 103, 104]
    assert (round(loop.pace.lag_s, 6), loop.pace.missed) == (0, 0)


def test_a_turn_is_at_most_a_twentieth_of_the_interval() -> None:
    assert run_loop(turn=1000)[3][0] == 101.05


def test_a_reading_that_begins_late_has_its_own_time() -> None:
    kept, loop, _, _ = run_loop(late_s={0: 0.09, 1: 0.11, 3: 0.25})

    assert kept.seconds == [101, 102.11, 103, 104.25]
    assert loop.pace.lag_s == pytest.approx(0.25)


def test_ticks_that_a_slow_reading_misses_are_counted() -> None:
    def slow(clock: Clock, number: int) -> None:
        clock.now_s += 2.3 if number == 2 else 0.1

    kept, loop, _, _ = run_loop(slow, until_s=106.5)

    assert kept.seconds == [101, 102, 105, 106]
    assert loop.pace.missed == 2
    assert loop.pace.duration_s == pytest.approx(0.1)


def test_after_a_failure_it_waits_ten_seconds_longer() -> None:
    def fail(_: Clock, number: int) -> None:
        if number == 1:
            raise OSError("the device is gone")

    kept, _, _, begun = run_loop(fail, until_s=113.5)

    assert begun == [101, 112, 113]
    assert kept.seconds == [112, 113]


# -- virtual devices ---------------------------------------------------------------------------------------------------


def test_a_virtual_device_shows_what_share_of_the_time_kernels_ran(tmp_path: Path) -> None:
    moments = iter([10.0, 12.0, 14.0, 14.0])
    reader = VirtualReader("1", tmp_path, lambda: next(moments))
    (tmp_path / "device-1.clock").write_bytes(struct.pack("<d", 0.5))

    found = by_name(reader.read())

    assert (found["DeviceUtilization"], found["DevicePowerUsage"], found["DeviceTemperature"]) == (25.0, 120.0, 42)
    assert 0 < found["DeviceMemoryUtilization"] <= 100
    (tmp_path / "device-1.clock").write_bytes(struct.pack("<d", 9.0))  # a long kernel counts all at once
    found = by_name(reader.read())
    assert (found["DeviceUtilization"], found["DevicePowerUsage"], found["DeviceTemperature"]) == (100.0, 300.0, 65)
    found = by_name(reader.read())  # no time has gone by
    assert (found["DeviceUtilization"], found["DevicePowerUsage"], found["DeviceTemperature"]) == (0.0, 60.0, 35)
    assert list(reader.processes()) == []


def test_a_clock_that_is_half_written_or_went_back_counts_as_idle(tmp_path: Path) -> None:
    (tmp_path / "device-0.clock").write_bytes(struct.pack("<d", 5.0))
    moments = iter([1.0, 2.0])
    reader = VirtualReader("0", tmp_path, lambda: next(moments))
    (tmp_path / "device-0.clock").write_bytes(b"half")

    assert by_name(reader.read())["DeviceUtilization"] == 0


def test_virtual_devices_are_numbered(tmp_path: Path) -> None:
    environ = {VIRTUAL_DEVICES: "3", VIRTUAL_DEVICE_DIR: str(tmp_path)}

    assert [reader.gpu for reader in device_readers(None, lambda *_: None, environ)] == ["0", "1", "2"]


def test_real_devices_are_opened_within_a_deadline() -> None:
    asked, answer = [], threading.Event()

    def open_nvml(names: object, _: object) -> list[Any]:
        asked.append(names)
        answer.wait()
        return ["nvidia"]

    def opened(environ: Mapping[str, str], deadline_s: float) -> list[Any]:
        return [*device_readers(["0"], lambda *_: None, environ, open_nvml, deadline_s)]

    assert opened({}, 0.01) == []
    answer.set()
    found = opened({VIRTUAL_DEVICES: "0"}, 20.0)
    assert found == ["nvidia"]
    assert asked == [["0"], ["0"]]


# -- NVIDIA ------------------------------------------------------------------------------------------------------------


def field(number: int, value: float, member: str = "ullVal", kind: int = 3, status: int = 0, scope: int = 0) -> Any:
    return SimpleNamespace(
        fieldId=number, scopeId=scope, nvmlReturn=status, valueType=kind, value=SimpleNamespace(**{member: value})
    )


class Driver(dict[str, Any]):
    """What NVML answers, by the end of the function's name; an exception is raised."""

    def __getattr__(self, function: str) -> Callable[..., Any]:
        def answer(*arguments: Any) -> Any:
            given = self[function.removeprefix("nvml").removeprefix("Device")]
            if isinstance(given, Exception):
                raise given
            return given(*arguments) if callable(given) else given

        return answer


@pytest.fixture
def driver() -> Driver:
    """A driver of one device."""
    return Driver(
        {
            "Init": None,
            "GetCount": 3,
            "GpmQueryDeviceSupport": SimpleNamespace(isSupportedDevice=0),
            "GetUtilizationRates": SimpleNamespace(gpu=87, memory=31),
            "GetMemoryInfo": SimpleNamespace(used=1000, total=8000),
            "GetPowerUsage": 412_500,
            "GetTemperature": 64,
            "GetClockInfo": lambda _, kind: {pynvml.NVML_CLOCK_SM: 1755, pynvml.NVML_CLOCK_MEM: 2619}[kind],
            "GetCurrentClocksEventReasons": 4,
            "GetFieldValues": [],
            "GetComputeRunningProcesses": [
                SimpleNamespace(pid=5, usedGpuMemory=77),
                SimpleNamespace(pid=6, usedGpuMemory=None),
            ],
            "GetProcessUtilization": lambda _, since: [
                SimpleNamespace(pid=number, smUtil=number * 10, timeStamp=since + number) for number in (3, 2)
            ],
        }
    )


PLAIN = {
    "DeviceUtilization": 87,
    "DeviceMemoryBusy": 31,
    "DeviceMemoryUsed": 1000,
    "DeviceMemoryUtilization": 12.5,
    "DevicePowerUsage": 412.5,
    "DeviceTemperature": 64,
    "DeviceSmClock": 1755,
    "DeviceMemoryClock": 2619,
    "DeviceClockEventReasons": 4,
    "DeviceXids": 0,
}


def test_an_nvidia_device_is_read_in_watts_percent_and_megahertz(driver: Driver) -> None:
    assert by_name(NvmlReader("0", "handle", driver=driver).read()) == PLAIN
    driver["GetMemoryInfo"] = SimpleNamespace(used=0, total=0)
    assert "DeviceMemoryUtilization" not in by_name(NvmlReader("0", "handle", driver=driver).read())


FIELDS = {  # what NVML's reference calls it: our metric, and its value where NVML says 1000
    "TOTAL_ENERGY_CONSUMPTION": ("DeviceEnergy", 1.0),  # millijoules
    "MEMORY_TEMP": ("DeviceMemoryTemperature", 1000),
    "POWER_CURRENT_LIMIT": ("DevicePowerLimit", 1.0),  # milliwatts
    "PCIE_REPLAY_COUNTER": ("DevicePcieReplays", 1000),
    "PCIE_COUNT_TX_BYTES": ("DevicePcieTransmit", 1000),
    "PCIE_COUNT_RX_BYTES": ("DevicePcieReceive", 1000),
    "ECC_SBE_VOL_TOTAL": ("DeviceEccCorrected", 1000),
    "ECC_DBE_VOL_TOTAL": ("DeviceEccUncorrected", 1000),
    "REMAPPED_UNC": ("DeviceRemappedRows", 1000),
    "REMAPPED_PENDING": ("DeviceRemapPending", 1000),
    "REMAPPED_FAILURE": ("DeviceRemapFailed", 1000),
    "NVLINK_THROUGHPUT_DATA_TX": ("DeviceNvlinkTransmit", 1_024_000),  # kibibytes, of all links together
    "NVLINK_THROUGHPUT_DATA_RX": ("DeviceNvlinkReceive", 1_024_000),
}


def test_fields_have_their_units_and_those_that_are_not_supported_are_left_out(driver: Driver) -> None:
    keys = {name: (getattr(pynvml, f"NVML_FI_DEV_{name}"), 2**32 - 1 if "NVLINK" in name else 0) for name in FIELDS}
    status = {"REMAPPED_UNC": pynvml.NVML_ERROR_UNKNOWN, "MEMORY_TEMP": pynvml.NVML_ERROR_NOT_SUPPORTED}

    def answer(_: object, fields: list[int | tuple[int, int]]) -> list[Any]:
        known = {key: name for name, key in keys.items()}
        asked = [each if isinstance(each, tuple) else (each, 0) for each in fields]
        assert sorted(asked) == sorted(keys.values())
        return [field(*key[:1], 1000, status=status.get(known[key], 0), scope=key[1]) for key in asked]

    driver["GetFieldValues"] = answer
    reader = NvmlReader("0", "handle", driver=driver)

    first = by_name(reader.read())
    status.clear()
    second = by_name(reader.read())

    assert second == PLAIN | dict(FIELDS.values())
    left_out = {"DeviceRemappedRows", "DeviceMemoryTemperature"}
    assert first == {name: value for name, value in second.items() if name not in left_out}


@pytest.mark.parametrize(
    ("kind", "member"),
    [("DOUBLE", "dVal"), ("UNSIGNED_INT", "uiVal"), ("UNSIGNED_LONG", "ulVal"), ("UNSIGNED_LONG_LONG", "ullVal"),
     ("SIGNED_LONG_LONG", "sllVal"), ("SIGNED_INT", "siVal")],
)  # fmt: skip
def test_a_fields_value_is_read_by_its_type(driver: Driver, kind: str, member: str) -> None:
    kinds = getattr(pynvml, f"NVML_VALUE_TYPE_{kind}")
    driver["GetFieldValues"] = [field(1, 5, member, kinds), field(2, 6, status=pynvml.NVML_ERROR_UNKNOWN)]

    assert list(field_values("handle", [1, 2], driver)) == [(1, 5.0)]


@pytest.mark.parametrize(
    ("error", "later"), [(pynvml.NVML_ERROR_NOT_SUPPORTED, False), (pynvml.NVML_ERROR_UNKNOWN, True)]
)
def test_what_a_device_does_not_support_is_left_out_from_then_on(driver: Driver, error: int, later: bool) -> None:
    reader, watts = NvmlReader("0", "handle", driver=driver), driver["GetPowerUsage"]
    driver["GetPowerUsage"] = pynvml.NVMLError(error)
    assert by_name(reader.read()) == {name: value for name, value in PLAIN.items() if name != "DevicePowerUsage"}
    driver["GetPowerUsage"] = watts
    assert ("DevicePowerUsage" in by_name(reader.read())) == later


@pytest.mark.parametrize("error", [pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_UNINITIALIZED])
def test_a_device_that_is_lost_is_an_error(driver: Driver, error: int) -> None:
    driver["GetPowerUsage"] = driver["GetComputeRunningProcesses"] = pynvml.NVMLError(error)
    with pytest.raises(DeviceLostError, match="gpu 0"):
        list(NvmlReader("0", "handle", driver=driver).read())
    with pytest.raises(DeviceLostError, match="gpu 0"):
        list(NvmlReader("0", "handle", driver=driver).processes())


def test_processes_are_reported_since_the_newest_that_was_seen(driver: Driver) -> None:
    reader = NvmlReader("0", "handle", driver=driver)

    def asked() -> list[tuple[str, float, str]]:
        return [(each.metric, each.value, each.tags["pid"]) for each in reader.processes()]

    use = [("ProcessDeviceUtilization", 30, "3"), ("ProcessDeviceUtilization", 20, "2")]
    assert asked() == [("ProcessDeviceMemory", 77, "5"), *use]
    since: list[int] = []

    def used(_: object, us: int) -> list[Any]:
        since.append(us)
        return []

    driver["GetProcessUtilization"] = used
    driver["GetComputeRunningProcesses"] = pynvml.NVMLError(pynvml.NVML_ERROR_UNKNOWN)
    assert asked() == []
    assert since == [3]


def test_activity_is_read_between_two_samples_a_tenth_of_a_second_apart(driver: Driver) -> None:
    clock, taken, samples = SimpleNamespace(now_s=5.0), [], iter(["one", "two"])
    driver["GpmQueryDeviceSupport"] = SimpleNamespace(isSupportedDevice=1)
    names = ["DeviceSmActive", "DeviceSmOccupancy", "DeviceTensorActive", "DeviceDramActive"]

    def get(asked: Any) -> None:
        assert (asked.numMetrics, asked.version) == (4, pynvml.NVML_GPM_METRICS_GET_VERSION)
        for place in range(4):
            asked.metrics[place].value = 10.126 + place
            asked.metrics[place].nvmlReturn = 0 if place != 2 else pynvml.NVML_ERROR_UNKNOWN

    class Asked(SimpleNamespace):
        def __init__(self) -> None:
            super().__init__(metrics=[SimpleNamespace() for _ in range(9)])

    driver |= {
        "c_nvmlGpmMetricsGet_t": Asked,
        "GpmSampleAlloc": lambda: next(samples),
        "GpmSampleGet": lambda _, sample: taken.append(sample),
        "GpmMetricsGet": get,
    }
    reader = NvmlReader("0", "handle", driver=driver, clock=lambda: clock.now_s)

    def active() -> dict[str, float]:
        return {name: value for name, value in by_name(reader.read()).items() if name in names}

    assert active() == {}  # the first sample
    clock.now_s = 5.09
    assert active() == {}
    clock.now_s = 5.2
    assert active() == {"DeviceSmActive": 10.13, "DeviceSmOccupancy": 11.13, "DeviceDramActive": 13.13}
    clock.now_s = 5.25
    assert active() == {}
    assert taken == ["one", "two"]


def test_a_device_is_found_by_address_number_or_uuid(driver: Driver) -> None:
    for kind in ("PciBusId", "UUID", "Index"):
        driver[f"GetHandleBy{kind}"] = lambda name, kind=kind: (kind, name)

    names = ("0000:3b:00.0", "GPU-1-2", "MIG-5", "3")
    assert [nvml_handle(name, driver)[0] for name in names] == ["PciBusId", "UUID", "UUID", "Index"]
    assert nvml_handle("3", driver)[1] == 3


def test_errors_that_the_driver_reports_are_passed_on_though_another_device_is_lost(driver: Driver) -> None:
    error, reported, ended = pynvml.NVMLError, list[tuple[str, int]](), threading.Barrier(3)
    timeout, lost = error(pynvml.NVML_ERROR_TIMEOUT), error(pynvml.NVML_ERROR_GPU_IS_LOST)
    news: dict[int, list[Any]] = {10: [79, lost], 11: [timeout, 31, 48, lost]}

    def handle(number: int) -> int:
        if number == 3:
            raise error(pynvml.NVML_ERROR_UNKNOWN)
        return 10 + number

    def register(device: int, _: int, events: SimpleNamespace) -> None:
        if device == 12:  # a part of a device has no events
            raise error(pynvml.NVML_ERROR_NOT_SUPPORTED)
        events.device = device

    def wait(events: SimpleNamespace, _: int) -> Any:
        event = news[events.device].pop(0)
        if event is lost:
            ended.wait(20)
        if isinstance(event, Exception):
            raise event
        return SimpleNamespace(eventData=event)

    driver["GetCount"] = 4
    driver["GetHandleByIndex"] = handle
    driver["EventSetCreate"] = SimpleNamespace
    driver["RegisterEvents"] = register
    driver["EventSetWait_v2"] = wait

    readers = nvml_readers(None, lambda gpu, number: reported.append((gpu, number)), driver)

    ended.wait(20)
    assert [(reader.gpu, reader.xids) for reader in readers] == [("0", 1), ("1", 2), ("2", 0)]
    assert sorted(reported) == [("0", 79), ("1", 31), ("1", 48)]


# -- the node ----------------------------------------------------------------------------------------------------------


def counters(cards: Mapping[str, object], disks: object) -> SimpleNamespace:
    """Return what stands in for psutil."""
    return SimpleNamespace(
        net_io_counters=lambda **_: cards,
        disk_io_counters=lambda: disks,
        getloadavg=lambda: (1.5, 2.5, 3.5),
        virtual_memory=psutil.virtual_memory,
        cpu_percent=psutil.cpu_percent,
    )


def test_network_and_disks_are_summed_without_the_loopback() -> None:
    def card(number: int) -> SimpleNamespace:
        return SimpleNamespace(bytes_recv=number, bytes_sent=2 * number, errin=1, errout=10, dropin=100, dropout=1000)

    cards = {"lo": card(5000), "eth0": card(7), "ib0": card(20)}

    disks = SimpleNamespace(read_bytes=3, write_bytes=4)
    found = by_name(NodeReader(counters=counters(cards, disks)).read())

    names = ("network_receive", "network_transmit", "network_errors", "disk_read", "disk_written")
    assert [found[name] for name in names] == [27, 54, 2222, 3, 4]
    found = by_name(NodeReader(counters=counters({"lo": card(1)}, None)).read())
    assert not {"network_receive", "disk_read"} & set(found)


def test_load_is_that_of_the_last_minute_and_processes_are_ones_own(tmp_path: Path) -> None:
    for name in ("12", "345", "self"):
        (tmp_path / name).mkdir()

    found = by_name(NodeReader(tmp_path, counters=counters({}, None)).read())

    assert (found["load_average"], found["num_running_processes"]) == (1.5, 2)
    assert by_name(NodeReader(tmp_path, user=-1).read())["num_running_processes"] == 0


def test_the_control_group_is_that_of_version_two(tmp_path: Path) -> None:
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "cgroup").write_text("4:memory:/old\n0::/job/a:b\n")
    for name in ("old", "job/a:b"):
        (tmp_path / "root" / name).mkdir(parents=True)
        (tmp_path / "root" / name / "cgroup.controllers").write_text("")

    assert control_group_of(tmp_path, tmp_path / "root") == tmp_path / "root" / "job" / "a:b"
    (tmp_path / "root" / "job" / "a:b" / "cgroup.controllers").unlink()
    assert control_group_of(tmp_path, tmp_path / "root") is None


# -- everything that reads on one node ---------------------------------------------------------------------------------


class Still(ReadingLoop):
    """A loop that does not run."""

    def start(self) -> None:
        """Read nothing."""

    def stop(self) -> None:
        """There is nothing to stop."""


def collectors(
    level: int, environ: Mapping[str, str] | None = None, now_s: float = 0.0
) -> tuple[Collectors, list[Event], list[object]]:
    reported: list[Event] = []
    asked: list[object] = []

    def readers(names: object, *_: object) -> list[Any]:
        asked.append(names)
        return [SimpleNamespace(gpu="3", read=lambda: iter(()), processes=lambda: iter(()))]

    telemetry: Any = SimpleNamespace(store=SampleStore(100, clock=lambda: 0.0))
    telemetry.store.add("m", {}, 0, 1.0)
    environment = JobEnvironment(Path("endpoint"), 1, "n7", level)
    settings, clock = TelemetrySettings(), lambda: now_s
    found = Collectors(telemetry, environment, settings, reported.append, environ or {}, readers, Still, clock, clock)
    return found, reported, asked


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        (1, []),
        (2, ["node"]),
        (3, ["node", "gpu 3"]),
        (4, ["node", "gpu 3", "processes of gpu 3", "itself"]),
    ],
)
def test_the_level_says_what_is_read(level: int, expected: list[str]) -> None:
    with collectors(level)[0] as found:
        assert [loop.name for loop in found.loops] == expected
        assert [loop.tags for loop in found.loops] == [
            {"host": "n7"} | ({"gpu": "3"} if "gpu" in name else {}) for name in expected
        ]


@pytest.mark.parametrize(("visible", "names"), [("", None), ("0,2", ["0", "2"]), ("GPU-1,", ["GPU-1"])])
def test_the_devices_are_those_that_the_job_sees(visible: str, names: list[str] | None) -> None:
    found, _, asked = collectors(3, {"CUDA_VISIBLE_DEVICES": visible})
    with found:
        assert asked == [names]


def test_a_reading_that_stalls_for_five_seconds_is_reported_once_and_so_is_its_end() -> None:
    found, reported, _ = collectors(3, now_s=100.0)
    with found:
        device = found.loops[1]
        for begun_s in (None, 95.0, 94.9, 94.0, 99.0, None):
            device.pace.begun_s = begun_s
            found.watch()

    assert reported == [
        Event(100_000_000, "stall", "gpu 3 has not answered for more than 5 s", "n7", "3"),
        Event(100_000_000, "stall", "gpu 3 answers again", "n7", "3"),
    ]


def test_of_a_device_that_stalls_again_and_again_two_lines_are_reported_in_an_hour() -> None:
    found, reported, _ = collectors(3)
    with found:
        device = found.loops[1]
        for now_s in range(6, 3600, 6):  # each stall lasts six seconds, and so does what is between two
            found._clock = partial(float, now_s)
            device.pace.begun_s = now_s - 5.5 if now_s % 12 else None
            found.watch()

    assert [event.text for event in reported] == ["gpu 3 has not answered for more than 5 s", "gpu 3 answers again"]


def test_it_reads_itself_too() -> None:
    used_s = time.process_time()
    with collectors(4)[0] as found:
        found.loops[1].pace.lag_s, found.loops[1].pace.duration_s = 0.12345, 0.00006
        found.loops[1].pace.missed = 7
        readings = list(found._itself())
        nbytes = found._telemetry.store.size().nbytes

    plain = {each.metric: each.value for each in readings if not each.tags}
    assert used_s - 0.001 <= plain.pop("collector_cpu") <= time.process_time() + 0.001
    assert plain == {
        "db_size": nbytes / 1e6,
        "telemetry_samples": 1,
        "telemetry_series": 1,
        "telemetry_dropped": 0,
    }
    of_gpu = {each.metric: each.value for each in readings if each.tags.get("reader") == "gpu-3"}
    assert of_gpu == {"collector_lag": 0.1235, "collector_duration": 0.0001, "collector_missed": 7}


def test_an_error_of_a_device_is_reported_and_a_server_that_is_gone_does_not_end_the_readings() -> None:
    found, reported, _ = collectors(3, now_s=2.0)

    def gone(_: Event) -> None:
        raise redis.ConnectionError("gone")

    found._on_xid("3", 79)
    found._report_event = gone
    found._on_xid("3", 80)

    assert reported == [Event(2_000_000, "xid", "XID 79 on n7 gpu 3", "n7", "3")]
