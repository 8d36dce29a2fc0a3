"""What the user reads while a job runs."""

from __future__ import annotations

import io

from rich.console import Console

from laggard.resilience.decision.failure import Failure
from laggard.resilience.record.account import Account


def test_a_programs_own_words_are_no_markup() -> None:
    text = io.StringIO()
    account = Account(Console(file=text, width=200), clock=lambda: 0.0)
    quote = "RuntimeError: [/gloo/transport/tcp/pair.cc:537] Read error [bold]"
    failure = Failure("node1", 0, 7, 1, 1, 0.0, 9.0, quote, "", "unknown", "")
    account.launch_began(0, ["node1"], [], None, "node1")
    account.launch_ended((failure,), "failure")
    account.tell("end", quote)
    account.close([], 1)
    closing = " ".join(text.getvalue().replace("│", " ").split())
    assert "RuntimeError: [/gloo/transport/tcp/pair.cc:537] Read error [bold]" in closing
    assert closing.endswith("1 launch, 0 nodes excluded, 0.0 s in all, exit code 1")
