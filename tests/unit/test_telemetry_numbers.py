"""What add_data takes from a value, and when."""

from __future__ import annotations

import contextlib
import math
import sys
from decimal import Decimal
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from laggard.telemetry import Telemetry
from laggard.telemetry.sending.numbers import MAX_PENDING, NotANumberError, Pending, number_of


class Broken:
    def __float__(self) -> float:
        raise RuntimeError("on a device that is lost")


NUMBERS = {
    "whole": (3, 3.0),
    "true": (True, 1.0),
    "float32": (np.float32(0.5), 0.5),
    "no axis": (np.array(2.5), 2.5),
    "one element": (np.array([[2.5]]), 2.5),
    "decimal": (Decimal("1.5"), 1.5),
}

REFUSED = {
    "None": None,
    r"text \('0.5'\)": "0.5",
    "text": b"1",
    r"text \('1.5'\)": np.array("1.5"),
    r"text \(bytearray": bytearray(b"1"),
    r"an array of shape \(2,\)": np.zeros(2),
    "list: ": [1.0],
    "complex: ": 1j,
    "int: int too large": 10**400,
    "Broken: on a device that is lost": Broken(),
}


@pytest.mark.parametrize(("value", "expected"), NUMBERS.values(), ids=NUMBERS)
def test_a_number_is_taken_from_what_holds_one(value: object, expected: float) -> None:
    assert number_of(value) == expected
    assert type(number_of(value)) is float


@pytest.mark.parametrize(("reason", "value"), REFUSED.items(), ids=REFUSED)
def test_a_value_without_one_number_is_refused_by_name(reason: str, value: object) -> None:
    with pytest.raises(NotANumberError, match=reason):
        number_of(value)


def test_an_array_of_cupy_is_refused_because_it_would_wait_for_the_gpu() -> None:
    array = type("ndarray", (), {"__module__": "cupy", "__float__": lambda _: 1.0})()
    with pytest.raises(NotANumberError, match="an array on a GPU"):
        number_of(array)


def test_outside_a_job_nothing_is_kept_and_nothing_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LAGGARD_ENDPOINT_FILE", raising=False)
    telemetry = Telemetry()
    for level in (0, 1):
        telemetry.add_data("loss", "text", telemetry_level=level)
        telemetry.add_data("loss", 1.5, telemetry_level=level)
    assert (telemetry.level, telemetry.dropped) == (0, 0)


def test_a_level_that_is_no_number_drops_the_sample() -> None:
    Telemetry().add_data("loss", 1.5, telemetry_level=cast("int", np.ones(2)))


@pytest.mark.filterwarnings("ignore")  # nested tensors are a prototype
def test_a_tensor_that_pytorch_reads_no_number_from_is_refused_in_one_line() -> None:
    torch = pytest.importorskip("torch", reason="needs the extra `torch`")
    unreadable = [
        torch.nested.nested_tensor([torch.ones(1)]),
        torch.ones(1, dtype=torch.uint8).view(torch.uint4),
        torch.ones(1, dtype=torch.uint8).view(torch.bits8),
    ]
    for tensor in unreadable:
        with pytest.raises(NotANumberError, match=r"\ATensor: .*\Z"):
            number_of(tensor)


def test_a_function_that_is_mapped_over_a_batch_is_not_stopped() -> None:
    torch = pytest.importorskip("torch", reason="needs the extra `torch`")

    def of_each(value: Any) -> Any:
        with pytest.raises(NotANumberError, match="vmap"):
            number_of(value)
        return value + 1

    assert torch.func.vmap(of_each)(torch.ones(3)).tolist() == [2, 2, 2]


def test_a_tensor_is_read_at_once_and_leaves_its_graph_behind() -> None:
    torch = pytest.importorskip("torch", reason="needs the extra `torch`")
    value = torch.tensor(1.5, requires_grad=True)
    assert number_of(value * 2) == 3.0
    assert number_of(torch.tensor([[2]], dtype=torch.bfloat16)) == 2.0
    without_one = {"shape \\(2,\\)": torch.ones(2), "complex64": torch.tensor(1j), "meta": value.to("meta")}
    for reason, refused in without_one.items():
        with pytest.raises(NotANumberError, match=reason):
            number_of(refused)


class Gpu:
    """A stand-in for PyTorch on a GPU that computes nothing until it is told to."""

    def __init__(self) -> None:
        self.captures = False
        self.queue: list[tuple[Any, float]] = []
        self.Tensor, self.float64 = SimpleTensor, "float64"
        self.cuda = SimpleNamespace(
            device=lambda _: contextlib.nullcontext(), is_current_stream_capturing=lambda: self.captures
        )

    def empty(self, count: int, *, dtype: object, pin_memory: bool) -> Any:
        assert (dtype, pin_memory) == ("float64", True)
        memory = np.empty(count)
        gpu = self

        class Pinned:
            def numpy(self) -> Any:
                return memory

            def __getitem__(self, number: int) -> Any:
                def copy_(source: SimpleTensor, *, non_blocking: bool) -> None:
                    assert non_blocking
                    gpu.queue.append((memory[number : number + 1], source.element))

                return SimpleNamespace(copy_=copy_)

        return Pinned()

    def compute(self) -> None:
        while self.queue:
            place, element = self.queue.pop(0)
            place[:] = element


class SimpleTensor:
    """A tensor with one element on a GPU; whoever asks for the element waits for the GPU, which fails here."""

    device = SimpleNamespace(type="cuda")

    def __init__(self, element: float) -> None:
        self.element = element

    def numel(self) -> int:
        return 1

    def is_complex(self) -> bool:
        return False

    def item(self) -> float:
        raise AssertionError("this would wait for the GPU")

    def detach(self) -> SimpleTensor:
        return self

    def reshape(self, shape: tuple[int, ...]) -> SimpleTensor:
        assert shape == ()
        return self

    def to(self, dtype: object) -> SimpleTensor:
        assert dtype == "float64"
        return self


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    gpu = Gpu()
    monkeypatch.setitem(sys.modules, "torch", gpu)
    return gpu


def test_a_tensor_on_a_gpu_is_copied_in_the_background_and_read_once_it_is_there(gpu: Gpu) -> None:
    for element in (2.5, math.nan, -math.inf, 0.0):
        number = number_of(SimpleTensor(element))
        assert isinstance(number, Pending)
        assert not number.ready
        gpu.compute()
        assert number.ready
        assert str(number.value()) == str(element)


def test_there_are_only_so_many_numbers_that_a_gpu_has_not_computed_yet(gpu: Gpu) -> None:
    waiting = [number_of(SimpleTensor(1.0)) for _ in range(MAX_PENDING)]
    del waiting[5000:]  # dropped, but their copies are still to come
    with pytest.raises(NotANumberError, match="10000 numbers before it are not computed yet"):
        number_of(SimpleTensor(1.0))
    gpu.compute()
    waiting.clear()
    again = [number_of(SimpleTensor(2.0)) for _ in range(5000)]
    gpu.compute()
    assert {number.value() for number in again if isinstance(number, Pending)} == {2.0}


def test_a_stream_that_becomes_a_graph_is_left_alone(gpu: Gpu) -> None:
    gpu.captures = True
    with pytest.raises(NotANumberError, match="becomes a CUDA graph"):
        number_of(SimpleTensor(2.5))
    assert gpu.queue == []
