"""``python -m laggard.resilience.agent.rank_watch``: watches from outside whether the ranks of this node do anything.

The node's agent runs it beside the program with ``--hang-timeout``. How each rank looks is kept in the state server,
where the controller finds it.
"""

from __future__ import annotations

import itertools
import logging
import os
import signal
import time
from collections.abc import Callable

import redis

from laggard.collectors.device import VIRTUAL_DEVICE_DIR
from laggard.kvstore.client.connection import current_session
from laggard.kvstore.control import Control
from laggard.kvstore.errors import FencedError, KVStoreError
from laggard.logs import configure_logging
from laggard.records import plain
from laggard.resilience.agent.ranks import Rank, RankFinder
from laggard.resilience.decision.hang import LifeWatch, RankLife

_log = logging.getLogger("laggard.resilience.agent")

LOOK_INTERVAL_S = 2.0
LONGEST_END_S = 600.0
# Of the time in which a GPU's memory is read or written, in percent; a kernel that waits for others hardly does.
MIN_MEMORY_PERCENT = 2
NICENESS = 10


def main() -> None:
    """Watch until SIGTERM."""
    configure_logging()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # in all threads, so that sigtimedwait gets it
    os.nice(NICENESS)
    session = current_session()
    node = session.environment.node
    control = Control(session.client, session.endpoint, session.environment.launch)
    finder = RankFinder(session.environment.launch, str(session.environment.endpoint_file))
    device_active = _device_reader()
    watches: dict[int, LifeWatch] = {}
    for number in itertools.count():
        ranks = finder.find()
        active = device_active()
        now_s = time.monotonic()
        watches = {rank.pid: watches.get(rank.pid) or LifeWatch(rank.counters(), now_s) for rank in ranks}
        lives = [_life(node, rank, watches[rank.pid], now_s, active) for rank in ranks]
        try:
            control.tell_ranks(node, {"number": number, "ranks": plain(lives)})
        except FencedError:  # the next launch has begun, and whoever begins it ends this process
            signal.sigtimedwait({signal.SIGTERM}, LONGEST_END_S)
            return
        except (redis.RedisError, KVStoreError) as error:
            _log.info("how the ranks look could not be stored: %s", error)
        if signal.sigtimedwait({signal.SIGTERM}, LOOK_INTERVAL_S) is not None:
            return


def _life(node: str, rank: Rank, watch: LifeWatch, now_s: float, device_active: bool | None) -> RankLife:
    silent_s = watch.look(rank.counters(), now_s, device_active=device_active)
    return RankLife(node, rank.rank, rank.state(), silent_s, watch.longest_s, device_active is not None)


def _device_reader() -> Callable[[], bool | None]:
    """Return what reads whether a GPU of this node moves data; it returns None without GPUs of NVIDIA's."""
    if VIRTUAL_DEVICE_DIR in os.environ:
        return lambda: None
    import pynvml as nvml

    try:
        nvml.nvmlInit()
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
    except nvml.NVMLError:
        return lambda: None

    def read() -> bool | None:
        try:
            return moves_device_memory([nvml.nvmlDeviceGetUtilizationRates(handle).memory for handle in handles])
        except nvml.NVMLError:  # not supported, or the device is lost, which others notice
            return None

    return read


def moves_device_memory(percents: list[int]) -> bool | None:
    """Return whether any GPU moves data, given the use of each one's memory in percent; None without GPUs."""
    return any(percent >= MIN_MEMORY_PERCENT for percent in percents) if percents else None


if __name__ == "__main__":
    main()
