"""The PyTorch task: a small network learns to read digits, once for each learning rate.

The digits are MNIST's if its files are given, otherwise the 1,797 that come with scikit-learn, in MNIST's shape.
"""

from __future__ import annotations

import argparse
import functools
import gzip
import hashlib
import os
import urllib.request
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from laggard import Telemetry, local_device

__all__ = ["DataError", "Digits", "Result", "download", "load_digits", "train"]

SOURCE = "https://ossci-datasets.s3.amazonaws.com/mnist"
SHA256 = {
    "train-images-idx3-ubyte.gz": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    "train-labels-idx1-ubyte.gz": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    "t10k-images-idx3-ubyte.gz": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    "t10k-labels-idx1-ubyte.gz": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
}
DOWNLOAD_TIMEOUT_S = 60
# An IDX file begins with 0, 0, the type of its numbers, and how many dimensions it has; then their lengths.
IDX_BYTES = 8
MEAN, DEVIATION = 0.1307, 0.3081  # of MNIST's pixels
TEST_DIGITS = 360  # the last of scikit-learn's: other people wrote them


class DataError(ValueError):
    """The digits are not available."""


class Digits(NamedTuple):
    """Images, ``(n, 28, 28)``, and what they show, ``(n,)``: to learn from, and to be tested with."""

    train_images: NDArray[np.uint8]
    train_labels: NDArray[np.uint8]
    test_images: NDArray[np.uint8]
    test_labels: NDArray[np.uint8]


class Result(NamedTuple):
    """The result of a learning rate; the accuracy is in percent."""

    learning_rate: float
    loss: float
    accuracy: float


def load_digits(directory: Path | None) -> Digits:
    """Read MNIST's files, gzipped or not; without a directory take scikit-learn's digits.

    Raises
    ------
    DataError
        If a file is missing or is not an IDX file.
    """
    if directory is None:
        return _small_digits()
    return Digits(*(read_idx(_find(directory, name)) for name in SHA256))


def download(directory: Path, source: str = SOURCE) -> None:
    """Fetch MNIST's four files unless they exist; each must have the right checksum.

    Raises
    ------
    DataError
        If a file cannot be fetched or has the wrong checksum.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"MNIST cannot be put into {directory}: {error.strerror}") from error
    for name, expected in SHA256.items():
        if (directory / name).exists():
            continue
        print(f"downloading {source}/{name} to {directory}", flush=True)
        try:
            with urllib.request.urlopen(f"{source}/{name}", timeout=DOWNLOAD_TIMEOUT_S) as answer:  # noqa: S310 - https
                content = answer.read()
        except OSError as error:
            raise DataError(f"{source}/{name} cannot be fetched: {error}") from error
        if (found := hashlib.sha256(content).hexdigest()) != expected:
            raise DataError(f"{source}/{name} has changed: its SHA-256 is {found}, not {expected}")
        (directory / name).write_bytes(content)


def read_idx(path: Path) -> NDArray[np.uint8]:
    """Read an IDX file of bytes.

    Raises
    ------
    DataError
        If it is not one.
    """
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    n_dimensions = content[3] if content[:3] == bytes((0, 0, IDX_BYTES)) else 0
    lengths = np.frombuffer(content[4 : 4 + 4 * n_dimensions], ">u4")
    values = np.frombuffer(content[4 + 4 * n_dimensions :], np.uint8)
    if n_dimensions == 0 or len(values) != lengths.prod(dtype=int):
        raise DataError(f"{path} is not an IDX file of bytes, or is truncated")
    return values.reshape(lengths)


def train(learning_rate: float, given: argparse.Namespace, digits: Digits) -> Result:
    """Train a network on this process's device and return how well it reads unseen digits."""
    torch.manual_seed(given.seed)
    on_device, run = _device(given.no_cuda)
    model = _network().to(on_device)
    optimizer = torch.optim.Adadelta(model.parameters(), lr=learning_rate)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=given.gamma)
    images, labels = _tensors(digits.train_images, digits.train_labels)

    def learn(batch: Tensor) -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images[batch].to(on_device)), labels[batch].to(on_device)).backward()
        optimizer.step()

    telemetry = Telemetry()
    loss = accuracy = float("nan")
    for _ in range(given.epochs):
        model.train()
        for batch in torch.randperm(len(images)).split(given.batch_size):
            run(functools.partial(learn, batch))
        scheduler.step()
        loss, accuracy = run(lambda: _test(model, digits, given.test_batch_size, on_device))
        telemetry.add_data("test_loss", loss, tagk="learning_rate", tagv=f"{learning_rate:g}")
    telemetry.finalize()
    return Result(learning_rate, loss, accuracy)


def _network() -> nn.Sequential:
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3), nn.ReLU(), nn.MaxPool2d(2)),  # 13 x 13 are left of 28 x 28
        *(nn.Conv2d(16, 32, 3), nn.ReLU(), nn.MaxPool2d(2)),  # 5 x 5
        *(nn.Flatten(), nn.Dropout(0.25), nn.Linear(32 * 5 * 5, 64), nn.ReLU(), nn.Linear(64, 10)),
    )


def _device(no_cuda: bool) -> tuple[torch.device, Callable[[Callable[[], Any]], Any]]:
    """Return where PyTorch computes, and what has to run each kernel."""
    if not no_cuda and "LAGGARD_VIRTUAL_DEVICES" in os.environ:
        torch.set_num_threads(1)  # a virtual device is one core's worth
        return torch.device("cpu"), local_device().run
    on_gpu = not no_cuda and torch.cuda.is_available()
    return torch.device("cuda" if on_gpu else "cpu"), lambda kernel: kernel()


def _test(model: nn.Module, digits: Digits, batch_size: int, on_device: torch.device) -> tuple[float, float]:
    """Return the mean loss and the accuracy in percent."""
    model.eval()
    loss = correct = 0.0
    images, labels = _tensors(digits.test_images, digits.test_labels)
    with torch.inference_mode():
        for part, truth in zip(images.split(batch_size), labels.to(on_device).split(batch_size), strict=True):
            output = model(part.to(on_device))
            loss += float(nn.functional.cross_entropy(output, truth, reduction="sum"))
            correct += float((output.argmax(dim=1) == truth).sum())
    return loss / len(images), 100 * correct / len(images)


def _tensors(images: NDArray[np.uint8], labels: NDArray[np.uint8]) -> tuple[Tensor, Tensor]:
    grey = torch.tensor(images, dtype=torch.float32).unsqueeze(1) / 255
    return (grey - MEAN) / DEVIATION, torch.tensor(labels, dtype=torch.int64)


def _find(directory: Path, name: str) -> Path:
    for path in (directory / name, directory / name.removesuffix(".gz")):
        if path.exists():
            return path
    raise DataError(f"there is no {name} in {directory}: name MNIST's folder, or fetch it with --download")


def _small_digits() -> Digits:
    from sklearn.datasets import load_digits as load

    images, labels = load(return_X_y=True)
    grey = (images.reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
    # Each pixel becomes 3 x 3, and a border of 2 is added, as MNIST's digits have one.
    large = np.pad(grey.repeat(3, axis=1).repeat(3, axis=2), ((0, 0), (2, 2), (2, 2)))
    split = len(labels) - TEST_DIGITS
    truth = labels.astype(np.uint8)
    return Digits(large[:split], truth[:split], large[split:], truth[split:])
