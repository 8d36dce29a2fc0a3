"""A log is good up to its last whole step before the damage, whatever the damage is."""

from __future__ import annotations

import io

from hypothesis import given
from hypothesis import strategies as st

from laggard.kvstore.state.log_scan import scan

ARITIES = {"multi": 1, "exec": 1, "set": -3, "hset": -4, "del": -2}
WORDS = st.binary(max_size=400)
COMMANDS = st.one_of(
    st.builds(lambda key, value: [b"SET", key, value], WORDS, WORDS),
    st.builds(lambda key, name, value: [b"HSET", key, name, value], WORDS, WORDS, WORDS),
    st.builds(lambda keys: [b"DEL", *keys], st.lists(WORDS, min_size=1, max_size=4)),
)
STEPS = st.lists(st.lists(COMMANDS, min_size=1, max_size=4), min_size=1, max_size=6)


def encoded(command: list[bytes]) -> bytes:
    return b"*%d\r\n" % len(command) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in command)


def log_of(steps: list[list[list[bytes]]]) -> tuple[bytes, list[int]]:
    """Return a log and where its steps end; the number of each step is that of its commit."""
    log, ends = b"", [0]
    for number, step in enumerate(steps, 1):
        acknowledged = [b"SET", b"laggard:{a}:state:ack:%d" % number, b"%d" % number, b"PXAT", b"%d" % (1000 * number)]
        commands = [[b"MULTI"], *step, acknowledged, [b"EXEC"]]
        log += b"".join(encoded(command) for command in commands)
        ends.append(len(log))
    return log, ends


def scanned(log: bytes) -> tuple[int, int, str | None]:
    result = scan(io.BytesIO(log), ARITIES)
    return result.good_bytes, (result.forgotten_ms or 0) // 1000, result.damage


@given(STEPS)
def test_a_whole_log_is_good_to_its_end(steps: list[list[list[bytes]]]) -> None:
    log, _ = log_of(steps)
    assert scanned(log) == (len(log), len(steps), None)


@given(STEPS, st.data())
def test_a_log_that_is_cut_anywhere_is_good_to_the_last_whole_step(
    steps: list[list[list[bytes]]], data: st.DataObject
) -> None:
    log, ends = log_of(steps)
    cut = data.draw(st.integers(0, len(log)))
    whole = max(n for n, end in enumerate(ends) if end <= cut)
    good, commit, damage = scanned(log[:cut])
    assert (good, commit) == (ends[whole], whole)
    assert (damage is None) == (cut == ends[whole])


@given(STEPS, st.data())
def test_zeros_anywhere_never_cost_a_step_before_them_nor_leave_a_part_of_one(
    steps: list[list[list[bytes]]], data: st.DataObject
) -> None:
    log, ends = log_of(steps)
    start = data.draw(st.integers(0, len(log) - 1))
    length = data.draw(st.integers(1, 600))
    damaged = (log[:start] + bytes(length) + log[start + length :])[: len(log)]
    good, commit, _ = scanned(damaged)
    before = max(n for n, end in enumerate(ends) if end <= start)
    assert good in ends[before:]
    assert commit >= before or damaged != log


@given(STEPS, st.binary(min_size=1, max_size=40))
def test_garbage_at_the_end_is_damage_and_costs_nothing(steps: list[list[list[bytes]]], garbage: bytes) -> None:
    log, _ = log_of(steps)
    good, commit, damage = scanned(log + b"\0" + garbage)
    assert (good, commit) == (len(log), len(steps))
    assert damage is not None


@given(st.binary(max_size=300))
def test_anything_at_all_can_be_scanned(data: bytes) -> None:
    result = scan(io.BytesIO(data), ARITIES)
    assert 0 <= result.good_bytes <= len(data)
    assert result.damage is not None or result.good_bytes == len(data) or data.startswith(b"#")


def test_a_note_of_the_server_is_no_command_and_one_that_is_cut_off_is_damage() -> None:
    log, _ = log_of([[[b"SET", b"a", b"b"]]])
    assert scanned(b"#TS:1\r\n" + log)[1:] == (1, None)
    assert scanned(log + b"#TS:1") == (len(log), 1, "it is cut off")


def test_a_command_that_the_server_does_not_know_is_damage() -> None:
    log, _ = log_of([[[b"SET", b"a", b"b"]]])
    result = scan(io.BytesIO(log + encoded([b"SEU", b"a", b"b"])), ARITIES)
    assert (result.good_bytes, result.damage) == (len(log), "b'SEU' is not a command of the server's")


def test_a_file_that_cannot_be_read_further_is_damage() -> None:
    log, ends = log_of([[[b"SET", b"a", b"b"]], [[b"SET", b"a", b"b" * 100_000]]])

    class BadSector(io.BytesIO):
        def read(self, count: int | None = -1) -> bytes:
            if self.tell() + (count or 0) > ends[1] + 200:
                raise OSError(5, "Input/output error")
            return super().read(count)

    result = scan(BadSector(log), ARITIES)
    assert (result.good_bytes, result.damage) == (ends[1], "it cannot be read (Input/output error)")
