"""What a fresh rank pays on a device before its first step, and what a process group costs that gets other peers there.

Each task runs in a process of its own, which begins with nothing loaded. On a processor it shows that it works.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil

__all__ = ["TASKS", "Measured", "main", "pays_s"]

GIB = 1 << 30
ROOT = Path(__file__).parents[1]
_CACHE = "TORCHINDUCTOR_CACHE_DIR"
_RECONFIGURED = 5  # times
_MOST_S = 60.0  # until a killed process's memory is free
_ON_A_PROCESSOR_GIB, _MOST_GIB, _COPIED_GIB = 1 / 16, 10.0, 1.0

Found = dict[str, float | str]


def start(device: str) -> Found:
    """Return the seconds of each part of a rank's start."""
    found: Found = {}
    begun_s = psutil.Process().create_time()

    def note(what: str) -> None:
        nonlocal begun_s
        _synchronize(device)
        found[what], begun_s = time.time() - begun_s, time.time()

    import torch

    found["Python and PyTorch"], begun_s = time.time() - begun_s, time.time()
    torch.zeros(1, device=device)
    note("the device's context")
    product = torch.ones(1024, 1024, device=device)
    product @ product
    note("the first product")
    size_gib = _ON_A_PROCESSOR_GIB if device == "cpu" else min(_MOST_GIB, _free_gib() / 2)
    held = torch.empty(int(size_gib * GIB), dtype=torch.uint8)
    begun_s = time.time()
    held.to(device, copy=True)
    note(f"{size_gib:.2g} GiB to the device")
    torch.compile(lambda values: (values @ values).relu().sum())(product)
    note("a compiled function")
    return found


def group(device: str) -> Found:
    """Return the seconds in which the process group of one rank gets its peers, each time anew, and what it takes."""
    import torch
    import torch.distributed as dist

    own: Any = dist
    values, taken = torch.ones(1024, device=device), _taken_bytes(device)
    backend = "gloo" if device == "cpu" else "nccl2"
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1, enable_reconfigure=True)
    found: Found = {"MiB of the device before it has one": f"{taken / (1 << 20):.0f}"}  # as of one that stands by
    tries = [*(str(number + 1) for number in range(1 + _RECONFIGURED)), "after an abort"]
    for number, which in enumerate(tries):
        begun_s = time.monotonic()
        if which == tries[-1]:
            own.get_backend_impl(dist.group.WORLD, torch.device(device)).abort()
        handle = own._get_reconfigure_handle()
        own._reconfigure(number, [handle], timeout=timedelta(seconds=30)).wait()
        dist.all_reduce(values)
        _synchronize(device)
        found[f"{backend}: peers, {which}"] = time.monotonic() - begun_s
    found["MiB of the device that it takes"] = f"{(_taken_bytes(device) - taken) / (1 << 20):.0f}"
    return found


def copies(device: str) -> Found:
    """Return the seconds in which a state is copied on the device, and to pinned memory."""
    import torch

    size = int((_ON_A_PROCESSOR_GIB if device == "cpu" else _COPIED_GIB) * GIB) // 16
    state = [torch.zeros(size, dtype=torch.uint8, device=device) for _ in range(16)]
    found: Found = {}
    for what, place, is_pinned in (("on the device", device, False), ("to pinned memory", "cpu", device != "cpu")):
        kept = [torch.zeros(size, dtype=torch.uint8, device=place, pin_memory=is_pinned) for _ in state]
        _synchronize(device)
        begun_s = time.monotonic()
        torch._foreach_copy_(kept, state)
        _synchronize(device)
        found[f"{16 * size / GIB:.2g} GiB copied {what}"] = time.monotonic() - begun_s
    return found


def fault(device: str) -> Found:
    """Return what a process can still do after an assertion on its device: if nothing, its rank must be replaced."""
    import torch

    values = torch.zeros(4, device=device)
    try:
        values[torch.tensor([9], device=device)]
        _synchronize(device)
        said = "no error"
    except (RuntimeError, IndexError) as error:
        said = type(error).__name__
    try:
        torch.ones(4, device=device).sum().item()
        goes_on = "the process goes on"
    except RuntimeError:
        goes_on = "nothing works any more"
    return {"an index that is too large": f"{said}; {goes_on}"}


_BUSY = """
import sys, torch
device, size = sys.argv[1], int(sys.argv[2])
held, values = torch.zeros(size, dtype=torch.uint8, device=device), torch.ones(2048, 2048, device=device)
print((values @ values)[0, 0].item(), flush=True)
while True:
    values = (values @ values).clamp(-1, 1)
"""


def killed(device: str) -> Found:
    """Return the seconds until the memory of a process that was killed is free, while its device computes."""
    import torch

    torch.zeros(1, device=device)  # what this process itself takes
    size, taken = int((_ON_A_PROCESSOR_GIB if device == "cpu" else _COPIED_GIB) * GIB), _taken_bytes(device)
    command = [sys.executable, "-c", _BUSY, device, str(size)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as busy:
        next(busy.stdout or iter(()))  # it computes
        begun_s = time.monotonic()
        busy.kill()
        busy.wait()
        gone_s = time.monotonic() - begun_s
    until_s = begun_s + _MOST_S
    while _taken_bytes(device) > taken + size // 16 and time.monotonic() < until_s:
        time.sleep(0.001)  # a driver tells nobody when memory is free
    return {"killed while it computes: gone": gone_s, "its memory free": time.monotonic() - begun_s}


TASKS: Mapping[str, Callable[[str], Found]] = {each.__name__: each for each in (start, group, copies, fault, killed)}


class Measured:
    """Runs tasks in processes of their own, until the time for all is over.

    Parameters
    ----------
    device
        PyTorch's name of it.
    cache
        The folder of compiled functions.
    seconds
        The time for all.
    """

    def __init__(self, device: str, cache: str, seconds: float) -> None:
        self._device, self._cache, self._end_s = device, cache, time.monotonic() + seconds

    def __call__(self, task: str) -> Found:
        """Return what a task finds, or why it found nothing."""
        left_s = self._end_s - time.monotonic()
        command = [sys.executable, "-m", "benchmarks.fresh_rank", task, self._device]
        environ = {**os.environ, _CACHE: self._cache}
        try:
            done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=left_s)
        except subprocess.TimeoutExpired:
            return {task: "left out: the time was over"}
        if done.returncode != 0:
            return {task: f"FAILED: {next(iter(done.stderr.strip().splitlines()[-1:]), '')[:160]}"}
        found: Found = json.loads(done.stdout.splitlines()[-1])
        return found


def pays_s(found: Found) -> float | None:
    """Return what a start takes in all, ``None`` if a part of it failed."""
    seconds = [value for value in found.values() if isinstance(value, float)]
    return sum(seconds) if len(seconds) == len(found) else None


def _synchronize(device: str) -> None:
    import torch

    if device != "cpu":
        torch.cuda.synchronize()


def _free_gib() -> float:
    import torch

    return min(float(torch.cuda.mem_get_info()[0]), psutil.virtual_memory().available) / GIB


def _taken_bytes(device: str) -> int:
    import torch

    if device == "cpu":
        return 0
    free, total = torch.cuda.mem_get_info()
    return int(total - free)


def main(argv: list[str]) -> int:
    """Run one task here, and print what it finds."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fresh_rank", description=__doc__)
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("device", help="PyTorch's name of it: cpu, cuda:0")
    options = parser.parse_args(argv)
    print(json.dumps(TASKS[options.task](options.device)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
