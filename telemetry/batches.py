"""Batches of samples on their way from a process to its node's store, over a socket in the node's private folder.

A batch is four bytes of length and then one value of :mod:`kvstore.codec`: nothing that is read can run code. The
folder is open to the job's owner only, so whoever can connect may write.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from kvstore.codec import decode, encode
from kvstore.errors import KVStoreError
from kvstore.store import SeriesKey
from kvstore.timeseries import Floats, Times

__all__ = ["LENGTH", "MAX_BATCH_BYTES", "Batch", "decode_batch", "encode_batch", "short_path", "socket_name"]

Batch = Mapping[SeriesKey, tuple[Times, Floats]]

LENGTH = struct.Struct("<I")
MAX_BATCH_BYTES = 64 << 20
_NAME = "a batch of samples"


def socket_name(node: str) -> str:
    """Return the name of a node's socket in its private folder."""
    return f"telemetry-{node}.sock"


@contextmanager
def short_path(path: Path) -> Iterator[str]:
    """Give a path to a socket that is short enough for the kernel, wherever its folder is."""
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)


def encode_batch(batch: Batch) -> bytes:
    """Return the batch as it goes over the socket."""
    empty = np.empty(0)
    value = {
        "series": [
            [metric, [part for pair in tags for part in pair], len(times)]
            for (metric, tags), (times, _) in batch.items()
        ],
        "times_us": np.concatenate([times for times, _ in batch.values()] or [empty.astype(np.int64)]),
        "values": np.concatenate([values for _, values in batch.values()] or [empty]),
    }
    encoded = encode(_NAME, value)
    return b"".join((LENGTH.pack(encoded.nbytes), *encoded.parts))


def decode_batch(body: bytes) -> Batch:
    """Read a batch back; ``body`` comes without the length.

    Raises
    ------
    ValueError
        If it is no batch.
    """
    try:
        value = decode(_NAME, [body])
        times_us, values = value["times_us"].astype(np.int64), value["values"].astype(np.float64)
        return _taken_apart(value["series"], times_us, values)
    except (KVStoreError, AttributeError, KeyError, IndexError, TypeError, struct.error) as error:
        raise ValueError(f"no batch of samples: {error!r}") from error


def _taken_apart(series: list[Any], times_us: Times, values: Floats) -> Batch:
    if sum(count for _, _, count in series) != len(times_us) or len(times_us) != len(values):
        raise ValueError("no batch of samples: the counts do not add up")
    batch, begin = {}, 0
    for metric, flat_tags, count in series:
        if count < 0 or not all(isinstance(part, str) for part in (metric, *flat_tags)):
            raise ValueError("no batch of samples: names must be text and counts positive")
        end = begin + count
        batch[metric, tuple(zip(flat_tags[::2], flat_tags[1::2], strict=True))] = times_us[begin:end], values[begin:end]
        begin = end
    return batch
