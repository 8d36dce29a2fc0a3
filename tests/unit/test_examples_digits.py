"""Digits for the PyTorch example: MNIST's files if there are any, no unrequested download, no invalid file."""

from __future__ import annotations

import gzip
import hashlib
import struct
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

import mnist
import telem

IMAGES = np.arange(3 * 28 * 28, dtype=np.uint8).reshape(3, 28, 28)
LABELS = np.array([7, 2, 1], dtype=np.uint8)


def idx(values: np.ndarray) -> bytes:
    return bytes((0, 0, 8, values.ndim)) + struct.pack(f">{values.ndim}I", *values.shape) + values.tobytes()


def write_mnist(folder: Path) -> None:
    """Write four small files in MNIST's format, every other one gzipped."""
    for number, name in enumerate(mnist.SHA256):
        content = idx(IMAGES if "images" in name else LABELS)
        path = folder / (name if number % 2 else name.removesuffix(".gz"))
        path.write_bytes(gzip.compress(content) if number % 2 else content)


def test_files_are_read_where_they_are_gzipped_or_not(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    digits = mnist.load_digits(tmp_path)
    for images, labels in (digits[:2], digits[2:]):
        assert np.array_equal(images, IMAGES)
        assert np.array_equal(labels, LABELS)


def test_a_missing_file_or_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(mnist.DataError, match=r"no train-images-idx3-ubyte\.gz in .*/nowhere: .* --download"):
        mnist.load_digits(tmp_path / "nowhere")


def test_a_file_is_refused_as_the_download_folder(tmp_path: Path) -> None:
    (tmp_path / "data").touch()
    with pytest.raises(mnist.DataError, match=r"MNIST cannot be put into .*data: File exists"):
        mnist.download(tmp_path / "data")


@pytest.mark.parametrize(
    "content",
    [b"", b"no digits", idx(IMAGES)[:-1], idx(IMAGES) + b"x", gzip.compress(idx(LABELS))[:-3]],
    ids=["empty", "text", "too short", "too long", "half a gzip file"],
)
def test_anything_but_a_complete_idx_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / ("file.gz" if content[:2] == b"\x1f\x8b" else "file")
    path.write_bytes(content)
    with pytest.raises(mnist.DataError, match=str(path)):
        mnist.read_idx(path)


def test_without_a_folder_there_are_real_digits_in_mnists_shape() -> None:
    train_images, train_labels, test_images, test_labels = mnist.load_digits(None)
    assert train_images.shape == (1437, 28, 28)
    assert test_images.shape == (360, 28, 28)
    assert train_images.dtype == np.uint8
    assert train_images.max() == 255
    assert not train_images[:, :2].any()  # the border
    assert set(train_labels) == set(test_labels) == set(range(10))


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def source(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """Serve a folder."""
    folder = tmp_path / "source"
    folder.mkdir()
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", folder
        server.shutdown()
        thread.join()


def test_a_download_says_from_where_and_does_not_repeat_itself(
    source: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    url, folder = source
    contents = {name: gzip.compress(idx(IMAGES if "images" in name else LABELS)) for name in mnist.SHA256}
    for name, content in contents.items():
        (folder / name).write_bytes(content)
        monkeypatch.setitem(mnist.SHA256, name, hashlib.sha256(content).hexdigest())
    mnist.download(tmp_path / "data", url)
    said = capsys.readouterr().out.splitlines()
    assert said == [f"downloading {url}/{name} to {tmp_path / 'data'}" for name in contents]
    assert np.array_equal(mnist.load_digits(tmp_path / "data").test_images, IMAGES)
    mnist.download(tmp_path / "data", url)
    assert capsys.readouterr().out == ""


def test_a_download_with_another_checksum_is_refused_and_not_kept(source: tuple[str, Path], tmp_path: Path) -> None:
    url, folder = source
    (folder / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(IMAGES)))
    with pytest.raises(mnist.DataError, match=r"has changed: its SHA-256 is \w{64}, not 440fcabf"):
        mnist.download(tmp_path / "data", url)
    assert list((tmp_path / "data").iterdir()) == []


def test_a_source_that_does_not_answer_is_named(source: tuple[str, Path], tmp_path: Path) -> None:
    with pytest.raises(mnist.DataError, match=r"cannot be fetched: HTTP Error 404"):
        mnist.download(tmp_path / "data", source[0])


def test_readings_become_lines_or_bars(capsys: pytest.CaptureFixture[str]) -> None:
    reading = telem.NodeReading("node1", 0.17, {"0": 12.0, "1": 0.0})
    telem.Lines().show(reading)
    assert capsys.readouterr().out == (
        "nodename: node1 cpu load average 1 minute: 0.17 device # 0 utilization: 12.00% device # 1 utilization: 0.00%\n"
    )
    bars = telem.Bars()
    bars.show(reading)
    bars.show(telem.NodeReading("node1", 0.17, {"0": 92.0, "1": 0.0}))
    bars.close()
    drawn = capsys.readouterr().err
    for bar in ("node1 cpu load avg.:   0%|", "node1 device 0 util:  12%|", "node1 device 0 util:  92%|"):
        assert bar in drawn
