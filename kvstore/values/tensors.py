"""PyTorch's tensors as descriptions and raw bytes, and back, for :mod:`laggard.kvstore.values.codec`.

PyTorch is looked up among the modules that the program has loaded, and never imported here.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from laggard.kvstore.errors import KVStoreError

Tensor = Any
"""A ``torch.Tensor``; its type cannot be named without PyTorch."""


class TensorError(KVStoreError):
    """Why a tensor, or what else is of a class of the program's, cannot be described or rebuilt; the codec names it."""

    reason: str
    template = "{reason}"


def is_tensor(value: object) -> bool:
    """Return whether this is a tensor of PyTorch's, of any kind."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def is_size(value: object) -> bool:
    """Return whether this is a ``torch.Size``."""
    torch = sys.modules.get("torch")
    return torch is not None and type(value) is torch.Size


def new_size(lengths: list[int]) -> object:
    """Return a ``torch.Size``, or a tuple in a process that does not use PyTorch."""
    torch = sys.modules.get("torch")
    return tuple(lengths) if torch is None else torch.Size(lengths)


def describe_setting(value: object) -> dict[str, str] | None:
    """Return the description of a ``torch.dtype`` or a ``torch.device``; None of anything else."""
    torch = sys.modules.get("torch")
    if torch is not None and type(value) is torch.dtype:
        return {"dtype": str(value).removeprefix("torch.")}
    return {"device": str(value)} if torch is not None and type(value) is torch.device else None


def new_setting(kind: str, name: str) -> object:
    """Return the ``torch.dtype`` or the ``torch.device`` of a description."""
    if kind == "dtype":
        return _dtype(name)
    try:
        return _torch().device(name)
    except RuntimeError as error:
        raise TensorError(f"this version of PyTorch has no device {name!r}") from error


def is_generator(value: object) -> bool:
    """Return whether this is a ``torch.Generator``."""
    torch = sys.modules.get("torch")
    return torch is not None and type(value) is torch.Generator


def new_generator(device: str, state: Tensor) -> object:
    """Return a ``torch.Generator`` in a state."""
    torch = _torch()
    try:
        generator = torch.Generator(device)
        generator.set_state(state)
    except RuntimeError as error:
        raise TensorError(f"it has a torch.Generator of {device}, which cannot be made here ({error})") from error
    return generator


def memory_of(tensor: Tensor) -> Hashable | None:
    """Return what two tensors have in common that are the same memory, seen in the same way; None if it has none."""
    torch = sys.modules["torch"]
    is_plain = type(tensor) is torch.Tensor and tensor.layout is torch.strided
    if not is_plain or tensor.is_meta or tensor.is_nested or tensor.numel() == 0:
        return None
    view = (tensor.dtype, tensor.shape, tensor.stride(), tensor.is_conj(), tensor.is_neg())
    return (tensor.device, tensor.data_ptr(), *view)


def tensors_in(value: object) -> Iterator[Tensor]:
    """Yield the tensors in a tree of dicts, lists and tuples."""
    if is_tensor(value):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors_in(item)


def shared_memory(tensors: Iterable[Tensor]) -> dict[Hashable, tuple[Tensor, int]]:
    """Return what overlaps: by `memory_of`, the memory that several tensors lie in, and where in it a tensor begins.

    The memory is a tensor of one axis. It is as short as it can be, and shorter than all that lie in it together.
    """
    storages: dict[Hashable, dict[Hashable, Tensor]] = {}
    for tensor in tensors:
        memory = memory_of(tensor)
        if memory is not None and not (tensor.is_quantized or tensor.is_conj() or tensor.is_neg()):
            storage = (tensor.device, tensor.untyped_storage().data_ptr(), tensor.dtype)
            storages.setdefault(storage, {})[memory] = tensor.detach()
    return dict(chain.from_iterable(map(_places, chain.from_iterable(map(_overlapping, storages.values())))))


def _overlapping(views: Mapping[Hashable, Tensor]) -> Iterator[list[Tensor]]:
    """Yield tensors of one storage whose ranges in it overlap."""
    group: list[Tensor] = []
    end = 0
    for tensor in sorted(views.values(), key=lambda tensor: tensor.storage_offset()):
        if group and tensor.storage_offset() >= end:
            yield group
            group = []
        group.append(tensor)
        end = max(end, _end_of(tensor))
    yield group


def _places(group: Sequence[Tensor]) -> Iterator[tuple[Hashable, tuple[Tensor, int]]]:
    start, end = group[0].storage_offset(), max(map(_end_of, group))
    if len(group) == 1 or sum(tensor.numel() for tensor in group) <= end - start:
        return  # nothing is stored twice, as of the columns of a matrix
    base = group[0].as_strided([end - start], [1], start)
    for tensor in group:
        if (memory := memory_of(tensor)) != memory_of(base):
            yield memory, (base, tensor.storage_offset() - start)


def _end_of(tensor: Tensor) -> int:
    """Return where a tensor's memory ends in its storage, in elements."""
    steps = ((length - 1) * stride for length, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return int(tensor.storage_offset() + sum(steps) + 1)


def view_of(base: Tensor, start: int, shape: list[int], strides: list[int]) -> Tensor:
    """Return a tensor in the memory of another, given where it begins there, in elements."""
    try:
        return base.as_strided(shape, strides, start)
    except RuntimeError as error:
        raise ValueError(str(error)) from None


def describe_tensor(tensor: Tensor) -> tuple[list[object], memoryview]:
    """Return a tensor's dtype, shape and order of axes in memory, and its elements."""
    # The elements are the memory of the tensor itself if that is on the CPU and without gaps; a tensor on another
    # device is copied, which waits for it.
    torch = sys.modules["torch"]
    _check_kind(torch, tensor)
    plain = tensor.detach().resolve_conj().resolve_neg()
    if plain.element_size() == 1:  # of some of these dtypes, PyTorch can copy nothing that is not contiguous
        plain = plain.view(torch.uint8)
    plain = plain.cpu()
    order = _order_in_memory(plain)
    dense = plain if plain.is_contiguous() else plain.permute(order).contiguous()
    name = str(tensor.dtype).removeprefix("torch.")
    return [name, list(plain.shape), order if order != sorted(order) else None], _bytes_of(torch, dense)


def tensor_bytes(described: list[Any]) -> int:
    """Return how many bytes the elements of a tensor have, by its description."""
    name, shape, _ = described
    return int(math.prod(shape) * _dtype(name).itemsize)


def tensor_of(described: list[Any], data: memoryview) -> Tensor:
    """Return the tensor of a description, in the memory that holds its elements."""
    name, shape, order = described
    dtype, torch = _dtype(name), sys.modules["torch"]
    order = list(range(len(shape))) if order is None else order
    lengths = [shape[axis] for axis in order]
    if data.nbytes:
        dense = torch.frombuffer(data, dtype=torch.uint8).view(dtype).view(lengths)
    else:
        dense = torch.empty(lengths, dtype=dtype)
    return dense.permute([order.index(axis) for axis in range(len(shape))])


def _torch() -> Any:
    torch = sys.modules.get("torch")
    if torch is None:
        raise TensorError("it has a PyTorch tensor: import torch before you read it")
    return torch


def _dtype(name: str) -> Any:
    torch = _torch()
    dtype = vars(torch).get(name)
    if not isinstance(dtype, torch.dtype):
        raise TensorError(f"this version of PyTorch has no dtype {name!r}")
    return dtype


def _check_kind(torch: Any, tensor: Tensor) -> None:
    kind = type(tensor)
    if kind is torch.nn.Parameter:
        raise TensorError("torch.nn.Parameter is not a supported type; use its detach(), or the module's state_dict()")
    if kind is not torch.Tensor:
        name = f"{kind.__module__}.{kind.__qualname__}"
        raise TensorError(f"{name} is not a supported type; use a plain torch.Tensor, such as its to_local()")
    if tensor.is_quantized or str(tensor.dtype).startswith("torch.q"):
        raise TensorError(f"a quantized tensor ({tensor.dtype}) is not supported; use its int_repr() and its scale")
    if tensor.is_nested:
        raise TensorError("a nested tensor is not supported; use its unbind()")
    if tensor.layout is not torch.strided:
        raise TensorError(f"a tensor of layout {tensor.layout} is not supported; use its to_dense()")
    if tensor.is_meta:
        raise TensorError("a tensor on the device meta has no values")


def _order_in_memory(tensor: Tensor) -> list[int]:
    """Return the axes from the slowest to the fastest, if its elements fill their memory without gaps or overlaps."""
    axes = list(range(tensor.dim()))
    if tensor.is_contiguous():
        return axes
    # Axes of length 1 may have any stride.
    order = sorted(axes, key=lambda axis: (-tensor.stride(axis), -tensor.size(axis)))
    expected = 1
    for axis in reversed(order):
        if tensor.size(axis) != 1 and tensor.stride(axis) != expected:
            return axes
        expected *= tensor.size(axis)
    return order


def _bytes_of(torch: Any, dense: Tensor) -> memoryview:
    if math.prod(dense.shape) == 0:
        return memoryview(bytearray())
    # Not reshape: PyTorch leaves an axis of length 1 any stride.
    flat = dense.as_strided([dense.numel()], [1])
    view: memoryview = flat.view(torch.uint8).numpy().data
    return view
