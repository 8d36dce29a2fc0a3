"""What the controller tells the user beside its decisions. Nothing reads these texts back."""

from __future__ import annotations

from laggard.resilience.controller.returning import NotBack, Trouble
from laggard.resilience.decision import wording
from laggard.resilience.decision.reasons import NodeWord
from laggard.resilience.errors import UnreachableNodesError
from laggard.resilience.text import duration


def not_back(of: NotBack) -> str:
    """Return why a node is not back, and when it is tried again."""
    word = f"; {wording.node_word(of.trouble.word)}" if of.trouble.word else ""
    next_attempt = f"the next attempt is in {duration(of.wait_s)}"
    return f"{of.host} is not back: {_trouble(of.trouble)}{word}; {next_attempt}"


def _trouble(of: Trouble) -> str:
    match of.error:
        case None:
            return "its agent has ended again"
        case UnreachableNodesError() as error:
            return f"{error.reason} ({', '.join(error.complaints.values())})"
    return str(of.error)


def stays(of: NodeWord) -> str:
    """Return what is wrong with a node that stays in use."""
    return f"{wording.node_word(of)}; it stays in use"
