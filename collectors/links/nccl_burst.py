"""One GPU's end of a meeting by NCCL: ``python -m laggard.collectors.links.nccl_burst GPU``.

It reads commands from standard input and answers each with a line, all of them JSON: its rank, then the unique id, then
bursts. It is a process of its own because NCCL may wait for the other end for ever, and only a process can be ended
then.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from typing import Any, TextIO

import numpy as np

from laggard.collectors.device import GpuDevice
from laggard.collectors.links.peer_copies import gpus_here

__all__ = ["REPEATS", "NcclEnd"]

REPEATS = 3
LOOK_INTERVAL_S = 0.2
ANSWER_BYTES = 1


class NcclEnd:
    """One of the two ranks of a communicator, on one GPU.

    Parameters
    ----------
    device
        The GPU.
    rank
        0 or 1.
    """

    def __init__(self, device: GpuDevice, rank: int) -> None:
        self._device, self._rank, self._peer = device, rank, 1 - rank
        from cupy.cuda import nccl  # CuPy itself does not load it

        self._cupy: Any = device.array_module
        self._nccl: Any = nccl
        self._communicator: Any = None

    def unique_id(self) -> bytes:
        """Return the id by which both ends find each other; rank 0 listens from then on."""
        return bytes(self._nccl.get_unique_id())

    def join(self, unique_id: bytes) -> None:
        """Meet the other end, however long that takes."""
        with self._device.current():
            self._communicator = self._nccl.NcclCommunicator(2, unique_id, self._rank)
        threading.Thread(target=self._watch, name="nccl-watch", daemon=True).start()

    def burst_s(self, n_bytes: int) -> float:
        """Send so many bytes some times, and receive as many, rank 0 first; return the fastest sending, in seconds.

        The first repeat does not count: NCCL connects two ranks when they first send to each other.
        """
        buffer = self._device.run(lambda: self._cupy.zeros(n_bytes, np.uint8))  # not what others left in the memory

        def send() -> None:  # not as a group: in one, the answer could overtake the burst
            self._send(buffer, n_bytes)
            self._receive(buffer, ANSWER_BYTES)

        def receive() -> None:
            for _ in range(1 + REPEATS):
                self._receive(buffer, n_bytes)
                self._send(buffer, ANSWER_BYTES)

        if self._rank == 1:
            self._device.timing(receive)
        seconds = [self._device.timing(send).device_s for _ in range(1 + REPEATS)]  # nobody else has turns on the GPU
        if self._rank == 0:
            self._device.timing(receive)
        return min(seconds[1:])

    def _send(self, buffer: Any, n_bytes: int) -> None:
        self._communicator.send(buffer.data.ptr, n_bytes, self._nccl.NCCL_UINT8, self._peer, self._stream)

    def _receive(self, buffer: Any, n_bytes: int) -> None:
        self._communicator.recv(buffer.data.ptr, n_bytes, self._nccl.NCCL_UINT8, self._peer, self._stream)

    @property
    def _stream(self) -> int:
        return int(self._cupy.cuda.get_current_stream().ptr)

    def _watch(self) -> None:
        """End the process when the other end is gone: the kernel that waits for it would never end."""
        while True:
            try:
                self._communicator.check_async_error()
            except self._nccl.NcclError as error:
                print(f"NcclError: {error}", file=sys.stderr, flush=True)
                os._exit(1)
            time.sleep(LOOK_INTERVAL_S)


def main(gpu: str, commands: TextIO, answers: TextIO) -> None:
    """Carry out the commands."""
    (device,) = gpus_here([gpu])
    end: NcclEnd | None = None
    for line in commands:
        match json.loads(line):
            case {"rank": int(rank)}:
                end = NcclEnd(device, rank)
                answer: dict[str, object] = {"id": end.unique_id().hex() if rank == 0 else ""}
            case {"id": str(unique_id)} if end:
                end.join(bytes.fromhex(unique_id))
                answer = {}
            case {"n_bytes": int(n_bytes)} if end:
                answer = {"seconds": end.burst_s(n_bytes)}
            case _:
                raise ValueError(f"a command that is none of ours: {line!r}")
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # to which NCCL writes, if NCCL_DEBUG is set
    main(sys.argv[1], sys.stdin, answers)
