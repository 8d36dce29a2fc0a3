"""What Slurm says of a node, from the line of ``sinfo --format=%T|%E``."""

from __future__ import annotations

import pytest

from laggard.resilience.allocation.slurm import word_of_sinfo


@pytest.mark.parametrize(
    ("said", "word"),
    [
        ("down|Not responding\n", "Slurm says node3 is down: Not responding"),
        ("down*|Not responding\n", "Slurm says node3 is down: Not responding"),
        ("drained|laggard\n", "Slurm says node3 is drained: laggard"),
        ("draining@|reboot ASAP : kernel\n", "Slurm says node3 is draining: reboot ASAP : kernel"),
        ("fail|none\n", "Slurm says node3 is fail"),
        ("allocated*|none\n", "Slurm says node3 does not respond"),
        ("allocated|none\n", ""),
        ("mixed|none\nmixed|none\n", ""),
        ("", ""),
    ],
)
def test_slurm_says_what_is_wrong_with_a_node_and_nothing_if_nothing_is(said: str, word: str) -> None:
    assert word_of_sinfo("node3", said) == word
