"""PyTorch's tensors and state_dicts come back as they were, whatever their dtype, shape and layout in memory."""

from __future__ import annotations

import random
import subprocess
import sys
import textwrap
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from laggard.kvstore.checkpoints.layout import plan
from laggard.kvstore.checkpoints.resharding import open_tree, read_whole
from laggard.kvstore.checkpoints.shard import Shard
from laggard.kvstore.errors import CorruptValueError, UnsupportedValueError
from laggard.kvstore.values.codec import decode, encode

torch: Any = pytest.importorskip("torch", reason="needs the extra `torch`")

DTYPES = [
    value
    for name, value in vars(torch).items()
    if isinstance(value, torch.dtype)
    and name == str(value).removeprefix("torch.")  # without aliases, such as torch.half
    and not name.startswith("q")  # quantized
]
# PyTorch 2.14 cannot compute the conjugates of torch.bcomplex32.
WITH_CONJUGATES = {dtype for dtype in DTYPES if dtype.is_complex and str(dtype) != "torch.bcomplex32"}


def round_trip(value: Any) -> Any:
    return decode("key", encode("key", value).parts)


def bits(tensor: Any) -> bytes:
    """Return the elements as bytes, in the order of the axes."""
    if tensor.element_size() == 1:
        tensor = tensor.view(torch.uint8)  # PyTorch copies some of these dtypes only if they are contiguous
    dense = tensor.detach().resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
    return bytes(dense.untyped_storage())


def is_same(value: Any, back: Any) -> bool:
    """Whether what came back has the same types, keys and bits, in the same order."""
    if type(value) is not type(back):
        return False
    if isinstance(value, torch.Tensor):
        return bool(value.dtype == back.dtype and value.shape == back.shape and bits(value) == bits(back))
    if isinstance(value, np.ndarray):
        return bool(value.dtype == back.dtype and value.tobytes() == back.tobytes())
    if isinstance(value, dict):
        keys_match = [(type(key), key) for key in value] == [(type(key), key) for key in back]
        return keys_match and all(is_same(value[key], back[key]) for key in value)
    if isinstance(value, (list, tuple)):
        return len(value) == len(back) and all(map(is_same, value, back))
    return bool(value == back)


@st.composite
def tensors(draw: Callable[..., Any]) -> Any:
    """Tensors of any dtype and bits: 0-d, empty, transposed, strided, expanded, flipped, of shared memory."""
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.lists(st.integers(0, 4), max_size=4))
    count = int(np.prod(shape, dtype=int))
    data = draw(st.binary(min_size=count * dtype.itemsize, max_size=count * dtype.itemsize))
    raw = bytes(byte & 1 for byte in data) if dtype is torch.bool else data
    flat = torch.frombuffer(bytearray(raw), dtype=torch.uint8).view(dtype) if count else torch.empty(0, dtype=dtype)
    tensor = flat.reshape(shape)
    if draw(st.booleans()):
        tensor = tensor.permute(draw(st.permutations(range(tensor.dim()))))
    if tensor.dim() and draw(st.booleans()):
        tensor = tensor[:: draw(st.integers(1, 3))]
    if draw(st.booleans()):
        tensor = tensor.expand(draw(st.integers(1, 3)), *tensor.shape)
    return tensor.conj() if dtype in WITH_CONJUGATES and draw(st.booleans()) else tensor


@pytest.mark.filterwarnings("ignore:(ComplexHalf|BComplex32) support is experimental")  # says PyTorch
@given(tensors())
def test_a_tensor_comes_back_with_its_dtype_shape_and_bits(tensor: Any) -> None:
    encoded = encode("key", tensor)
    copied = decode("key", encoded.parts)
    in_place = Shard.whole("key", plan(encoded.parts).content()).value()
    for back in (copied, in_place):
        assert is_same(tensor, back)
        assert (str(back.device), back.requires_grad) == ("cpu", False)


@given(st.permutations(range(4)), st.lists(st.integers(1, 3), min_size=4, max_size=4))
def test_a_tensor_without_gaps_keeps_the_order_of_its_axes_in_memory(axes: list[int], shape: list[int]) -> None:
    tensor: Any = torch.arange(int(np.prod(shape))).reshape(shape).permute(axes)
    back = round_trip(tensor)
    longer = [axis for axis in range(4) if tensor.size(axis) > 1]
    assert [back.stride(axis) for axis in longer] == [tensor.stride(axis) for axis in longer]


def test_the_memory_of_a_tensor_is_not_copied_by_encoding() -> None:
    tensor = torch.zeros(1000)
    encoded = encode("key", [tensor, tensor.clone()])
    tensor += 1
    first, second = decode("key", encoded.parts)
    assert (first.sum(), second.sum()) == (1000, 0)


def read_back(value: Any) -> list[Any]:
    encoded = encode("key", value)
    return [decode("key", encoded.parts), Shard.whole("key", plan(encoded.parts).content()).value()]


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 10)), min_size=1, max_size=6))
def test_parts_of_one_memory_that_overlap_are_stored_once_and_overlap_again(places: list[tuple[int, int]]) -> None:
    memory = torch.arange(40)
    parts = [memory[start : start + length] for start, length in places]
    encoded = encode("key", parts)
    assert encoded.nbytes - len(encoded.parts[0]) == 8 * len({int(number) for part in parts for number in part})
    for back in read_back(parts):
        assert is_same(parts, back)
        back[0][0] = -1
        first = places[0][0]
        changed = [place for place, part in zip(places, back, strict=True) if -1 in part]
        assert changed == [(start, length) for start, length in places if start <= first < start + length]
    assert is_same(parts, read_whole(open_tree(Shard.whole("key", plan(encoded.parts).content()))))


@given(st.lists(st.tuples(st.integers(0, 9), *[st.integers(1, 4), st.integers(0, 6)] * 2), min_size=1, max_size=6))
def test_views_of_one_memory_are_not_stored_in_more_bytes_than_they_have(views: list[tuple[int, ...]]) -> None:
    memory = torch.arange(100)
    value = [memory.as_strided([rows, columns], [down, right], at) for at, rows, down, columns, right in views]
    encoded = encode("key", value)
    assert encoded.nbytes - len(encoded.parts[0]) <= sum(view.nbytes for view in value)
    assert all(is_same(value, back) for back in read_back(value))


@pytest.mark.parametrize("view", ["[7,[2],[1]]", "[-1,[2],[1]]", "[0,[2],[-1]]", "[0,[9],[1]]"])
def test_a_view_beyond_its_memory_is_refused(view: str) -> None:
    header = '{"view":[{"tensor":["int64",[8],null]},' + view[1:] + "}"
    with pytest.raises(CorruptValueError):
        decode("key", [len(header).to_bytes(4, "little") + header.encode() + bytes(64)])


def test_tied_weights_are_stored_once_and_tied_again() -> None:
    weight = torch.rand(1000)
    value = {"tokens": weight, "other": [weight.clone()], "bytes": b"x", "head": (weight.detach(),)}
    encoded = encode("key", value)
    assert 2 * 4000 < encoded.nbytes < 3 * 4000
    for back in (decode("key", encoded.parts), Shard.whole("key", plan(encoded.parts).content()).value()):
        assert is_same(value, back)
        back["tokens"] += 1
        assert torch.equal(back["head"][0], weight + 1)
        assert torch.equal(back["other"][0], weight)
    whole = read_whole(open_tree(Shard.whole("key", plan(encoded.parts).content())))
    assert is_same(value, whole)


def test_views_of_one_memory_with_other_elements_are_no_ties() -> None:
    memory = torch.arange(6.0) * (1 + 1j)
    views = [memory, memory.conj(), memory.view(torch.int64), memory[:0]]
    back = round_trip(views)
    assert all(map(is_same, views, back))
    back[0] += 1
    assert all(map(is_same, views[1:], back[1:]))


def test_a_loss_is_stored_without_its_graph() -> None:
    loss = torch.nn.Linear(3, 1)(torch.ones(3)).square().mean()
    back = round_trip({"loss": loss})["loss"]
    assert (back.item(), back.dim(), back.requires_grad) == (loss.item(), 0, False)


@pytest.mark.filterwarnings("ignore")  # what is refused here is also deprecated, or a prototype
def test_what_is_no_plain_tensor_is_refused_by_name() -> None:
    refused: dict[str, Callable[[], Any]] = {
        r"quantized tensor \(torch.qint8\)": lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
        r"quantized tensor \(torch.quint8\)": lambda: torch.ones(3, dtype=torch.uint8).view(torch.quint8),
        "nested tensor": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
        "layout torch.sparse_coo": lambda: torch.eye(3).to_sparse(),
        "device meta": lambda: torch.empty(3, device="meta"),
        "torch.nn.Parameter is not a supported type; use its detach": lambda: torch.nn.Parameter(torch.ones(3)),
        "Buffer": lambda: type("Buffer", (torch.Tensor,), {})(),
    }
    for reason, make in refused.items():
        with pytest.raises(UnsupportedValueError, match=rf"'weights\[0\]': .*{reason}"):
            encode("weights", [make()])


class Convolutions(torch.nn.Module):  # type: ignore[misc]  # mypy does not read PyTorch
    """A module with buffers, tied weights, bf16 and channels last."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = torch.nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
        self.norm = torch.nn.BatchNorm2d(4)
        self.head = torch.nn.Linear(4, 4, bias=False, dtype=torch.bfloat16)
        self.tied = torch.nn.Linear(4, 4, bias=False, dtype=torch.bfloat16)
        self.tied.weight = self.head.weight

    def forward(self, image: Any) -> Any:
        """Return something that depends on all parameters."""
        features = self.norm(self.convolution(image)).mean((2, 3))
        return self.tied(self.head(features.bfloat16()))


OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, amsgrad=True),
    "Adam with groups": lambda parameters: torch.optim.Adam([{"params": [each]} for each in parameters], lr=0.1),
    "Adagrad": torch.optim.Adagrad,
}

SCHEDULERS: dict[str, Callable[[Any], Any]] = {
    "MultiStepLR": lambda optimizer: torch.optim.lr_scheduler.MultiStepLR(optimizer, [1, 1, 5]),
    "OneCycleLR": lambda optimizer: torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=10),
    "ReduceLROnPlateau": torch.optim.lr_scheduler.ReduceLROnPlateau,
    "LambdaLR": lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.9**step),
    "CyclicLR": lambda optimizer: torch.optim.lr_scheduler.CyclicLR(optimizer, 0.1, 0.2),
    "SequentialLR": lambda optimizer: torch.optim.lr_scheduler.SequentialLR(
        optimizer,
        [torch.optim.lr_scheduler.ConstantLR(optimizer), torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 5)],
        [2],
    ),
}


@pytest.mark.parametrize("make_optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_the_state_dicts_of_a_model_and_its_optimizer_come_back_and_can_be_loaded(
    make_optimizer: Callable[[Any], Any],
) -> None:
    model = Convolutions()
    optimizer = make_optimizer(model.parameters())

    def loss() -> Any:
        optimizer.zero_grad()
        value = model(torch.ones(2, 3, 8, 8)).float().square().mean()
        value.backward()
        return value

    for _ in range(2):
        optimizer.step(loss)
    saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}

    back = round_trip(saved)
    assert is_same(saved, back)
    assert type(back["model"]) is OrderedDict
    assert vars(back["model"]) == vars(model.state_dict())
    weight = back["model"]["convolution.weight"]
    assert weight.is_contiguous(memory_format=torch.channels_last)

    again = Convolutions()
    resumed = make_optimizer(again.parameters())
    again.load_state_dict(back["model"])
    resumed.load_state_dict(back["optimizer"])
    assert is_same(saved, {"model": again.state_dict(), "optimizer": resumed.state_dict()})


@pytest.mark.parametrize("make_scheduler", SCHEDULERS.values(), ids=SCHEDULERS)
def test_the_state_dict_of_a_scheduler_comes_back(make_scheduler: Callable[[Any], Any]) -> None:
    optimizer = torch.optim.SGD(torch.nn.Linear(1, 1).parameters(), lr=0.1, momentum=0.9)
    scheduler = make_scheduler(optimizer)
    for _ in range(3):
        optimizer.step()
        scheduler.step(*[0.5] * isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau))
    assert is_same(scheduler.state_dict(), round_trip(scheduler.state_dict()))


def test_a_scaler_and_the_states_of_random_generators_come_back() -> None:
    states = {
        "scaler": torch.amp.GradScaler("cpu", init_scale=4.0).state_dict(),
        "torch": torch.get_rng_state(),
        "generator": torch.Generator().manual_seed(7).get_state(),
        "python": random.getstate(),
        "numpy": np.random.RandomState(7).get_state(),
        "size": torch.ones(2, 3).shape,
    }
    back = round_trip(states)
    assert is_same(states, back)
    drawn = [torch.rand(3), random.random()]
    torch.set_rng_state(back["torch"])
    random.setstate(back["python"])
    assert is_same(drawn, [torch.rand(3), random.random()])


def test_dtypes_devices_and_generators_come_back() -> None:
    generator = torch.Generator().manual_seed(7)
    torch.rand(3, generator=generator)
    value = {"dtypes": [torch.bfloat16, torch.int8], "devices": (torch.device("cpu"), torch.device("cuda:3"))}
    assert round_trip(value) == value
    encoded = encode("key", [generator])
    for back in (decode("key", encoded.parts), Shard.whole("key", plan(encoded.parts).content()).value()):
        assert type(back[0]) is torch.Generator
        assert torch.equal(torch.rand(3, generator=back[0]), torch.rand(3, generator=generator.clone_state()))


def test_pytorch_is_loaded_by_the_program_alone() -> None:
    """A process without it reads everything but tensors, and is told what to do for those."""
    program = """
        import sys
        from laggard.kvstore.values.codec import decode, encode
        from laggard.kvstore.errors import CorruptValueError, UnsupportedValueError
        encode("key", [1, {2: (3,)}])
        print(decode("key", [bytes.fromhex(sys.argv[1])]))
        try:
            decode("key", [bytes.fromhex(sys.argv[2])])
        except UnsupportedValueError as error:
            print(error)
        print("torch" in sys.modules)
    """
    stored = [encode("key", value).joined().hex() for value in (torch.Size([2, 3]), torch.ones(2))]
    source = textwrap.dedent(program)
    done = subprocess.run([sys.executable, "-c", source, *stored], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "(2, 3)",
        "State cannot hold the value of 'key': it has a PyTorch tensor: import torch before you read it",
        "False",
    ]
