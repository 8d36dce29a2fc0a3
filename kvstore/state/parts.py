"""How a transaction is cut into parts, each small enough that the server is never busy with one for long."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from laggard.kvstore.values.decoding import Buffer


@dataclass(frozen=True, slots=True)
class StepLimits:
    """How much the server does in one step: it serves nobody else meanwhile."""

    # It takes a few microseconds for each thing in a part, and about a millisecond for each megabyte.
    part_size: int = 1000
    part_bytes: int = 2 << 20
    settled: int = 500  # records that move to the index, each looked up and written


STEP_LIMITS = StepLimits()


@dataclass(frozen=True, slots=True)
class Operation:
    """What a transaction does to one key."""

    name: str  # `value`, `list`, `append`, `increment` or `delete`
    key: str  # the key
    pieces: Sequence[Buffer | int] = ()  # pieces as they are stored; the only one of an increment is its amount
    chunks: int = 0  # how many chunks the pieces have

    @property
    def depends_on_state(self) -> bool:
        """Whether its effect depends on what the key holds."""
        return self.name in {"append", "increment"}

    @property
    def size(self) -> int:
        """How many things the server has to look at."""
        return 1 + len(self.pieces) + self.chunks

    @property
    def nbytes(self) -> int:
        """How many bytes are sent."""
        return len(self.key) + sum(8 if isinstance(piece, int) else len(piece) for piece in self.pieces)


@dataclass(slots=True)
class Part:
    """What one call of the commit script gets."""

    reads: dict[str, str] = field(default_factory=dict)  # the version of each key that was read
    operations: list[Operation] = field(default_factory=list)  # what to do
    needs_lock: bool = False  # whether nobody else may commit between this part and the transaction's last


def cut(reads: Mapping[str, str], operations: Iterable[Operation], limits: StepLimits = STEP_LIMITS) -> list[Part]:
    """Return the parts of a transaction, in order; a small one has one part."""
    # First comes what does not depend on what is stored, so that the others are kept waiting for the rest only.
    pieces = [piece for operation in operations for piece in _cut_pieces(operation, limits)]
    extended = {piece.key for piece in pieces if not piece.depends_on_state}
    blind = [piece for piece in pieces if piece.key in extended]
    dependent = [piece for piece in pieces if piece.key not in extended]
    return list(_packed([*blind, *reads.items(), *dependent], len(blind), limits))


def _cut_pieces(operation: Operation, limits: StepLimits) -> Iterator[Operation]:
    """Cut a list with many pieces: what does not fit is appended."""
    if len(operation.pieces) <= 1:
        yield operation
        return
    name, start, nbytes = operation.name, 0, 0
    chunks_each = -(-operation.chunks // len(operation.pieces))
    for at, piece in enumerate(operation.pieces):
        nbytes += 8 if isinstance(piece, int) else len(piece)
        if at > start and (nbytes > limits.part_bytes or (at - start + 1) * (1 + chunks_each) >= limits.part_size):
            yield replace(operation, name=name, pieces=operation.pieces[start:at], chunks=(at - start) * chunks_each)
            name, start, nbytes = "append", at, 0
    rest = operation.pieces[start:]
    yield replace(operation, name=name, pieces=rest, chunks=min(operation.chunks, len(rest) * chunks_each))


def _packed(items: Sequence[Operation | tuple[str, str]], blind: int, limits: StepLimits) -> Iterator[Part]:
    part, size, nbytes = Part(), 0, 0
    for at, item in enumerate(items):
        item_size, item_bytes = (item.size, item.nbytes) if isinstance(item, Operation) else (1, len(item[0]))
        if size and (size + item_size > limits.part_size or nbytes + item_bytes > limits.part_bytes):
            yield part
            part, size, nbytes = Part(), 0, 0
        if isinstance(item, Operation):
            part.operations.append(item)
        else:
            part.reads[item[0]] = item[1]
        part.needs_lock |= at >= blind
        size, nbytes = size + item_size, nbytes + item_bytes
    yield part
