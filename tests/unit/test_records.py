"""Records are written as plain JSON values, and read back with their types checked."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from laggard.records import plain, record_of


@dataclass(frozen=True)
class Small:
    name: str
    number: float = 0.0


@dataclass(frozen=True)
class Other:
    name: str


@dataclass(frozen=True)
class Large:
    kind: Literal["a", "b"]
    either: Small | Other
    several: tuple[Small | Other, ...]
    pair: tuple[int, str]
    maybe: int | None = None
    names: frozenset[str] = frozenset()
    by_name: Mapping[str, Small] = field(default_factory=dict)


LARGE = Large("a", Other("x"), (Small("y", 1.5), Other("z")), (1, "one"), 3, frozenset({"n"}), {"s": Small("s")})


def test_a_record_is_read_back_as_it_was() -> None:
    assert record_of(Large, json.loads(json.dumps(plain(LARGE)))) == LARGE


def test_a_number_that_json_lacks_is_null_and_nan_again() -> None:
    written = plain(Small("x", math.inf))
    assert written["number"] is None
    assert math.isnan(record_of(Small, written).number)


def test_every_text_is_cleaned_as_it_is_read() -> None:
    assert record_of(Small, {"name": "a\x1b[2Jb"}, lambda text: text.replace("\x1b", " ")) == Small("a [2Jb")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"kind": "c"}, "Large.kind must be of type Literal, not str"),
        ({"kind": ["a"]}, "Large.kind must be of type Literal, not list"),
        ({"pair": [1]}, "zip"),
        ({"pair": [True, "one"]}, "Large.pair must be of type int, not bool"),
        ({"maybe": "3"}, "Large.maybe must be of type int, not str"),
        ({"either": {"is": "Small"}}, "Large.either lacks 'name'"),
        ({"either": {"is": "Neither", "name": "x"}}, "Large.either is none of Small, Other"),
        ({"either": "x"}, "Large.either is none of Small, Other"),
        ({"several": {"is": "Small", "name": "x"}}, "Large.several must be of type tuple, not dict"),
        ({"by_name": {"s": {"name": "s", "number": 10**400}}}, "Large.by_name.number must be of type float, not int"),
    ],
)
def test_what_is_of_another_type_is_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        record_of(Large, plain(LARGE) | changed)
