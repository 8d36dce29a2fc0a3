"""The decoder that the tests read answers with refuses what Grafana's Go back end refuses, or would draw wrongly."""

from __future__ import annotations

import pytest

from tests.integration.serving import go_strict

NOW_S = 1_795_000_000
POINTS = f'{{"{NOW_S}": 1.5}}'
GOOD = f'{{"metric": "m", "tags": {{"gpu": "0"}}, "aggregateTags": ["host"], "dps": {POINTS}}}'


def test_a_good_answer_is_read() -> None:
    assert go_strict(b"[]") == []
    assert go_strict(f"[{GOOD}]".encode())[0]["tags"] == {"gpu": "0"}
    assert go_strict(f"[{GOOD}]".replace(POINTS, f"[[{NOW_S}, 1.5]]").encode(), arrays=True)


@pytest.mark.parametrize(
    ("good", "bad"),
    [
        ("1.5", "null"),
        ("1.5", "NaN"),
        ("1.5", '"1.5"'),
        ("1.5", "true"),
        ('{"gpu": "0"}', '{"gpu": 0}'),
        ('{"gpu": "0"}', "[]"),
        ('{"gpu": "0"}', "null"),
        ('["host"]', '"host"'),
        ('["host"]', "[1]"),
        ('"m"', "null"),
        (f'"{NOW_S}"', f'"{NOW_S}.5"'),
        (f'"{NOW_S}"', f'"{NOW_S}000"'),
        (POINTS, f'{{"{NOW_S + 1}": 1.5, "{NOW_S}": 1.5}}'),
        (POINTS, f"[[{NOW_S}, 1.5]]"),
        (f"[{GOOD}]", '{"error": {"code": 400}}'),
    ],
)
def test_what_go_refuses_or_misreads_is_refused(good: str, bad: str) -> None:
    answer = f"[{GOOD}]"
    assert good in answer

    with pytest.raises((AssertionError, ValueError)):
        go_strict(answer.replace(good, bad).encode())


@pytest.mark.parametrize("dps", [POINTS, f"[[{NOW_S}]]", f"[[{NOW_S}.5, 1.5]]"])
def test_what_go_refuses_in_arrays_is_refused(dps: str) -> None:
    answer = f"[{GOOD}]".replace(POINTS, dps)

    with pytest.raises((AssertionError, ValueError)):
        go_strict(answer.encode(), arrays=True)
