"""The jobs of ``python -m benchmarks poisoned``: drawn at random. Pure."""

from __future__ import annotations

import random
from dataclasses import dataclass

from benchmarks.blame_jobs import WORDS

SAVE_EVERY = 4
STEPS = 28
# What is wrong with the save, by where it is; of what is wrong before the save, no checksum can know.
WRONG_BEFORE = ("NaN in the weights", "a bit flipped before the save", "optimizer state of another shape")
KINDS = {
    "State": (*WRONG_BEFORE, "bits flipped in the server", "a value cut in the server"),
    "memory": (*WRONG_BEFORE, "bits flipped in all copies", "bits flipped in one copy"),
    "directory": ("bits flipped in the file", "a cut file"),
    "a key of State": ("NaN in the weights", "bits flipped in the server"),
}
SHARES = {"State": 40, "memory": 40, "directory": 20}
PREEMPTIONS = ("signal: SIGKILL", "signal: SIGTERM", "node lost")


@dataclass(frozen=True, slots=True)
class Failure:
    """One failure of a healthy job."""

    at: int  # after how many steps of its launch; below 0: before it is loaded
    rank: int
    words: str  # an error, an exit code or a signal, or ``node lost``


@dataclass(frozen=True, slots=True)
class Job:
    """A job, and the truth about it.

    Attributes
    ----------
    number
        Which of its seed's.
    where, how
        Where it saves, and what is wrong with a save; empty: nothing.
    step
        Of the save that is wrong.
    then
        What the first launch ends with; empty: with what comes of the save.
    ranks
        How many there are, on two virtual nodes.
    failures
        Of a healthy job, by launch.
    steps
        How many there are.
    """

    number: int
    where: str
    how: str
    step: int
    then: str
    ranks: int
    failures: tuple[tuple[int, Failure], ...] = ()
    steps: int = STEPS

    @property
    def before(self) -> bool:
        """Whether it is wrong before it is saved."""
        return self.how in WRONG_BEFORE

    @property
    def goes_back(self) -> bool:
        """Whether the job has to go back."""
        return bool(self.how) and self.where != "a key of State" and self.how != "bits flipped in one copy"


def draw_poisoned(seed: int, number: int, where: str = "") -> Job:
    """Return one of a seed's jobs with a poisoned save."""
    chance = random.Random(f"{seed} {number} {where}")
    where = where or chance.choices(list(SHARES), list(SHARES.values()))[0]
    how = chance.choice(KINDS[where])
    then = chance.choice([each for each in WORDS if "Connection" not in each])
    step = SAVE_EVERY * chance.randrange(2, 6)
    ranks = 1 if chance.random() < 3 / 4 else 2
    return Job(number, where, how, step, "" if how in WRONG_BEFORE else then, ranks)


def draw_healthy(seed: int, number: int, *, own_words: bool) -> Job:
    """Return one of a seed's healthy jobs: with preemptions and one-offs, the latter in words of their own or any."""
    chance = random.Random(f"{seed} {number} healthy")
    words = list(dict.fromkeys(WORDS))
    chance.shuffle(words)
    failures = []
    for launch in range(chance.randrange(1, 7)):
        is_one_off = chance.random() < 0.5
        said = (words.pop() if own_words else chance.choice(words)) if is_one_off else chance.choice(PREEMPTIONS)
        at = chance.choice((-1, chance.randrange(3), chance.randrange(STEPS)))
        failures.append((launch, Failure(at, chance.randrange(2), said)))
    return Job(number, chance.choice(("State", "memory")), "", 0, "", chance.randint(1, 2), tuple(failures))


def spoil_bytes(content: bytes, how: str, chance: random.Random) -> bytes:
    """Return stored bytes as damage leaves them: half of them, or with three bits flipped behind the header."""
    if "cut" in how:
        return content[: len(content) // 2]
    spoiled = bytearray(content)
    for at in chance.sample(range(len(content) // 2, len(content)), 3):
        spoiled[at] ^= 1 << chance.randrange(8)
    return bytes(spoiled)
