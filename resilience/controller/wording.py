"""What the controller tells the user beside its decisions. Nothing reads these texts back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from laggard.kvstore.client.connection import Endpoint
from laggard.kvstore.control import NodeRecord
from laggard.resilience.controller.returning import NotBack, Trouble
from laggard.resilience.decision import wording
from laggard.resilience.decision.in_place import Obstacle
from laggard.resilience.decision.reasons import NodeWord
from laggard.resilience.errors import UnreachableNodesError
from laggard.resilience.text import abbreviated, duration
from laggard.system.ports import port_range


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


def cut_off(hosts: Sequence[str], server: Endpoint, primary: NodeRecord) -> str:
    """Return who cannot reach the state server, which is on the primary or of the site's."""
    is_ours = server.host == primary.address
    where = f"{primary.hostname}:{server.port}" if is_ours else server.address
    fix = " --port-range names the ports that it lets through" if is_ours and not port_range() else ""
    return f"{abbreviated(hosts)} cannot reach {where}, where State is: is there a firewall?{fix}"


def stays(of: NodeWord) -> str:
    """Return what is wrong with a node that stays in use."""
    return f"{wording.node_word(of)}; it stays in use"


_OBSTACLES: Mapping[Obstacle, str] = {
    "cannot stay": "{why}",
    "has ended": "a rank has ended already",
    "lost again": "more ranks were lost meanwhile",
    "new process failed": "a new process failed while it started",
    "no common step": "there is no step whose state all of them have",
    "node lost": "a node is lost",
    "not begun": "not all of them have started their steps",
    "not formed": "they did not connect in time",
    "not paused": "no step has ended in time",
    "not ready": "they were not ready in time",
    "same step": "ranks were replaced at this step before",
    "too many lost": "more than half of them would be replaced",
    "too often": "--max-restarts-per-hour is used up by replaced ranks",
    "tried enough": "ranks keep being lost meanwhile",
}


def spare(host: str) -> str:
    """Return where processes stand by."""
    return f"processes stand by on {host}: they take the places of ranks that are lost, or whose node is replaced"


def no_spare(host: str, why: str) -> str:
    """Return why nothing stands by on a node of the reserve."""
    return f"no processes stand by on {host}: {why}"


def not_in_place(of: Obstacle, why_not: str) -> str:
    """Return why all ranks are relaunched, though they were to keep their processes."""
    return f"ranks cannot keep their processes: {_OBSTACLES[of].format(why=why_not)}"
