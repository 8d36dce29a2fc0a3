"""What the decisions say to people: one function a record. Nothing reads these texts back."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from laggard.kvstore.checkpoints.complete import Newest
from laggard.resilience.decision import events
from laggard.resilience.decision.evidence import Finding, FindingKind, Found
from laggard.resilience.decision.failure import Failure, OtherEnd
from laggard.resilience.decision.hang import Silent
from laggard.resilience.decision.ledger import NodeEvidence
from laggard.resilience.decision.origin import SIGNALS_OF_CHILDREN
from laggard.resilience.decision.reasons import Change, Fact, FactKind, NodeWord, Stopped, StuckProcesses, WhyLost
from laggard.resilience.decision.stacks import HELD, Doing, Standing, Standstill
from laggard.resilience.errors import ProcessesStillRunningError
from laggard.resilience.reading.targets import NoAnswer, Target, Unanswered
from laggard.resilience.text import abbreviated, duration
from laggard.system.ports import host_and_port

# Of the processes that ended beside the one that was first.
MAX_OTHERS_NAMED = 3
MOMENT_S = 0.05

# What comes between a fact and what is said before it or after it, where that is no semicolon.
_BEFORE: Mapping[FactKind | None, str] = {
    **dict.fromkeys(("examined first", "excluded for", "in reserve"), ": "),
    **dict.fromkeys(("quarantined", "unused"), ", "),
}
_AFTER: Mapping[FactKind | None, str] = {**dict.fromkeys(("hangs", "last failure", "last hang"), ": "), "node": " "}
# The words of the facts whose name is not what is said.
_FACTS: Mapping[FactKind, str] = {
    "--resilient relaunches": "without --resilient nothing is relaunched",
    "--exhaust-resources would go on": "with --exhaust-resources the job would go on without it",
    "answers again": "{hosts} answers again",
    "devices moved": "devices of {hosts} change places",
    "devices too few": "no node with devices is left: {hosts} cannot run the program",
    "examined first": "it is examined first",
    "excluded for": "excluded for {duration}",
    "hangs": "the program hangs",
    "hourly restarts used up": "--max-restarts-per-hour={number} is used up",
    "in reserve": "it is in the reserve",
    "in place": "replaced, and the other ranks keep their processes",
    "moved in place": "its ranks go on there from step {number}, and the others keep their processes",
    "irreplaceable": "no other node could take the place of {hosts}",
    "last failure": "the last failure",
    "last hang": "the last hang",
    "no progress": "no progress for {duration}: no commit to State, no step reported (--give-up-after)",
    "moved": "{hosts} change places",
    "nodes too few": "{good_nodes} left for --nodes={of}; with --exhaust-resources the job would go on with fewer",
    "not accused in use": "no accused node is in use",
    "not excluded": "{hosts} is not excluded",
    "not returned": "{hosts} {have} not returned within {duration}",
    "out of reserve": "removed from the reserve",
    "one save back": "one checkpoint back, in case the newest is at fault",
    "own error": "the error is the program's own",
    "the program's": "the program: {number} failures without progress, the last two at the same place",
    "pause": "after a wait of {duration}",
    "primary cannot run": "no node is left to run the program: the primary, {hosts}, has no processors or GPUs for it",
    "quarantined": "and --quarantine=1 would take {hosts} back",
    "recovers": "the program restarts its workers by itself",
    "restarts used up": "--max-restarts={number} is used up",
    "unused": "but was not in use",
    "waiting": "waiting up to {duration} for {hosts} to return",
}
_FINDINGS: Mapping[FindingKind, str] = {
    "gpu lost": "gpu {of} is lost",
    "memory errors": "gpu {of} has had {number:.0f} uncorrectable memory errors",
    "broken row": "gpu {of} cannot replace a broken row of its memory",
    "gpu gone": "gpu {of} is gone",
    "wrong results": "gpu {of} gives {fault}",
    "disk full": "the disk of {of} is full",
    "memory lost": "only {number:.1f} of its {total:.1f} GB of memory are present",
    "memory in use": "its memory is in use by others: {number:.1f} of {total:.1f} GB are free",
    "kernel line": "its kernel reports {of!r}",
    "no reading": "its devices give no reading",
    "slow": "{slow}",
}


def reason(facts: events.Reason) -> str:
    """Return a reason in one sentence."""
    text, between = "", ""
    for fact in facts:
        kind = fact.kind if isinstance(fact, Fact) else None
        text += (between or _BEFORE.get(kind, "; ")) if text else ""
        text, between = text + _PARTS[type(fact)](fact), _AFTER.get(kind, "")
    return text


def _plain_fact(fact: Fact) -> str:
    return _FACTS.get(fact.kind, fact.kind).format(
        hosts=abbreviated(fact.hosts),
        have="has" if len(fact.hosts) == 1 else "have",
        number=f"{fact.number:.0f}",
        good_nodes="1 good node is" if fact.number == 1 else f"{fact.number:.0f} good nodes are",
        of=fact.of,
        duration=duration(fact.number),
    )


def change(of: Change) -> str:
    """Return how the nodes in use change."""
    others = [abbreviated(of.without)] if of.without else []
    devices = [f"the devices of {of.primary} (the primary)"] if of.primary else []
    gone = others if of.primary_is_back else [*others, *devices]
    parts = [f"without {', '.join(gone)}"] if gone else []
    if of.set_aside:
        parts.append(f"{abbreviated(of.set_aside)} {'waits' if len(of.set_aside) == 1 else 'wait'} in the reserve")
    if of.came:
        came = abbreviated(of.came)
        parts.append(f"{came} comes in from the reserve" if parts else f"with {came} from the reserve")
    if of.primary_is_back:
        parts.append(f"{devices[0]} are used again")
    if of.alone:
        parts.append(f"{of.alone} goes on alone")
    return "; ".join(parts) or "on the same nodes"


def failure(of: Failure) -> str:
    """Return a failure in one sentence."""
    subject = f"{'a Ray worker' if of.is_worker else rank_name(of.rank)} on {of.host}"
    kind = "" if of.kind == "unknown" else f" ({of.kind}: {of.cause})"
    if of.quote:
        return f"{subject} {_how_it_ended(of)}: {of.quote}{kind}{_others(of)}"
    last = f", its last line: {of.last_line}" if of.last_line else ""
    return f"{subject} {_how_it_ended(of)}{kind}{last}{_others(of)}"


def _others(of: Failure) -> str:
    """Return who else has ended, as a sentence reads on; of many, only the first are named."""
    if not of.others:
        return ""
    named, rest = of.others[:MAX_OTHERS_NAMED], of.others[MAX_OTHERS_NAMED:]
    n_more = len(rest) + of.n_more
    lost = f" that lost {'its' if n_more == 1 else 'their'} peer" if rest and rest[0].lost_peer else ""
    more = f" and {n_more} other{'' if n_more == 1 else 's'}{lost}" if n_more else ""
    return f"; also ended: {', '.join(map(_other, named))}{more}"


def _other(of: OtherEnd) -> str:
    code = of.exit_code
    who = of.host if of.rank is None else f"rank {of.rank} on {of.host}"
    who = f"a Ray worker on {who}" if code is None else who
    if of.lost_peer:
        return f"{who} (lost its peer)"
    how = "" if code is None else f" by {signal_name(-code)}" if code < 0 else f" with {code}"
    when = f"{abs(of.after_s):.1f} s {'earlier' if of.after_s < 0 else 'later'}"
    return f"{who}{how} {'at the same moment' if abs(of.after_s) < MOMENT_S else when}"


def _how_it_ended(of: Failure) -> str:
    if of.lingers_s is not None:
        return f"raised an error and has hung for {duration(of.lingers_s)} since"
    if of.exit_code is None:
        return f"ended after {duration(of.ran_s)}; Ray does not know how"
    if of.exit_code < 0:
        return f"was killed by {signal_name(-of.exit_code)} after {duration(of.ran_s)}"
    child = SIGNALS_OF_CHILDREN.get(of.exit_code)
    of_child = f" ({child.name} of a child)" if child else ""
    return f"exited with {of.exit_code}{of_child} after {duration(of.ran_s)}"


def signal_name(number: int) -> str:
    """Return a signal's name, or its number if it has none."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def hang(of: events.ProgramHung) -> str:
    """Return a hang in one sentence."""
    stacks = f": {standstill(of.stacks)}" if of.stacks else ""
    return f"no sign of life{silent(of.silent)} for {of.silent_s:.0f} s{stacks}"


def silent(who: Silent | None) -> str:
    """Return who was silent, as a sentence reads on from "no sign of life"."""
    if who is None:
        return ""
    return f" from {rank_name(who.rank)} on {who.host}" if who.host else " from any rank"


def rank_name(rank: int | None) -> str:
    """Return a rank as a sentence names it, without its node."""
    return "the program" if rank is None else f"rank {rank}"


def node_evidence(of: NodeEvidence) -> str:
    """Return what the ledger has against a node."""
    where = f"{of.host} gpu {of.device}" if of.device else of.host
    failures = "1 failure" if of.failures == 1 else f"{of.failures} failures"
    value = (
        f"{of.value:.2g}"
        if of.value < 100
        else f"{of.value:.0f}"
        if of.value < 1e4
        else f"{of.value:.1e}".replace("e+0", "e")
    )
    placements = "1 placement" if of.placements == 1 else f"{of.placements} placements"
    return f"{where}: {failures} followed it over {placements}, evidence {value}"


def standstill(of: Standstill) -> str:
    """Return in one sentence where the ranks stand."""
    more = [f"and {of.n_more} more places"] if of.n_more else []
    return "; ".join([*map(_standing, of.standings), *more])


def _standing(of: Standing) -> str:
    one = of.n_ranks == 1
    who = f"{rank_name(of.rank)} on {of.host}" if one else f"{of.n_ranks} ranks"
    if of.doing == "unreadable":
        return f"{who} cannot be read"
    if of.doing in {"waits for others", "waits at a socket"}:
        return f"{who} {'waits' if one else 'wait'} {f'in {of.place}' if of.place else 'at a socket'}"
    sentence = f"{who} {'is' if one else 'are'} {_whereabouts(of.doing, of.place)}"
    if of.waits_for_idle_pool:
        return f"{sentence}, all workers of its pool are idle: the one that had the task has ended"
    if of.child is None:
        return sentence
    if of.child.signum:
        return f"{sentence}, its child {of.child.pid} was killed by {signal_name(of.child.signum)}"
    return f"{sentence}, its child {of.child.pid} is {_whereabouts(of.child.doing, of.child.place)}"


def _whereabouts(doing: Doing, place: str) -> str:
    remark = doing if doing in HELD else ""
    if not place:
        return remark or "at an unknown place"
    return f"in {place}{f', {remark}' if remark else ''}"


def findings(found: Sequence[Finding]) -> str:
    """Return what speaks against a node."""
    return "; ".join(
        _FINDINGS[each.kind].format(of=each.of, number=each.number, total=each.total, fault=each.fault, slow=each.slow)
        for each in found
    )


def stopped(of: Stopped) -> str:
    """Return who ended the job, and why."""
    return f"stopped by {signal_name(of.signum)}{f', {of.why}' if of.why else ''}"


def lost(of: events.NodeLost) -> str:
    """Return which node is lost, and why."""
    known = [*([why_lost(of.why)] if of.why else []), *([node_word(of.word)] if of.word else [])]
    return f"{of.host} is lost ({'; '.join(known)})" if known else f"{of.host} is lost"


def why_lost(of: WhyLost) -> str:
    """Return why a node counts as lost."""
    match of.kind:
        case "ended":
            return "its agent has ended"
        case "told to end":
            return "its agent was told to end"
        case "stuck":
            return "" if of.stuck is None else stuck(of.stuck)
        case "silent":
            return f"no heartbeat for {of.silent_s:.1f} s"
        case "Ray ended":
            return "its Ray processes have ended"


def stuck(of: StuckProcesses) -> str:
    """Return which processes could not be ended."""
    if not of.pids:
        return f"processes of an old launch could not be ended within {of.within_s:.0f} s"
    return str(ProcessesStillRunningError(of.pids, of.within_s, of.states))


def waits_for(of: Unanswered) -> str:
    """Return what the job waits for, and since when."""
    since = time.strftime("%H:%M:%S", time.localtime(of.since_s))
    return f"waits for {target(of.target)}, {_no_answer(of.why)} since {since}, as seen from {of.host}"


def target(of: Target) -> str:
    """Return what may not answer, as a sentence names it."""
    match of.kind:
        case "name":
            return of.host or "the name server"
        case "port":
            return host_and_port(of.host, of.port)
        case _:
            return of.of


def _no_answer(why: NoAnswer) -> str:
    return f"HTTP {why.status}" if why.kind == "HTTP" else why.kind


def drained(of: events.NodesDrained) -> str:
    """Return which nodes leave the reserve, and what their manager says of them."""
    hosts = abbreviated(sorted(word.host for word in of.words))
    leave = "leaves" if len(of.words) == 1 else "leave"
    return f"{hosts} {leave} the reserve: {'; '.join(map(node_word, of.words))}"


def returned(of: events.NodeReturned) -> str:
    """Return which node is back, or why it stays out."""
    return f"{of.host} does not pass its probe ({findings(of.faults)})" if of.faults else f"{of.host} is back"


def node_word(of: NodeWord) -> str:
    """Return what who gives the nodes says of one."""
    if of.manager == "Ray":
        until = f", until {time.strftime('%H:%M:%S', time.localtime(of.until_s))}" if of.until_s else ""
        return f"Ray drains it{until}"
    if not of.state:
        return f"Slurm says {of.host} does not respond"
    return f"Slurm says {of.host} is {of.state}{f': {of.why}' if of.why else ''}"


def went_back(of: Newest) -> str:
    """Return that it did not help to set a checkpoint aside."""
    both = f"the {of.name} of step {of.checkpoint.step} and from the one before it, of step {of.before.step}"
    return f"it fails from {both}: change the program, or start it from something else"


_PARTS: Mapping[type, Callable[[Any], str]] = {
    Fact: _plain_fact,
    Change: change,
    Failure: failure,
    NodeEvidence: node_evidence,
    Found: lambda of: f"{of.host}: {findings(of.findings)}",
    Stopped: stopped,
    events.ProgramEnded: lambda _: "the program ended with exit code 0",
    events.ProgramHung: hang,
    events.NodeLost: lost,
    events.NodesDrained: drained,
    events.NodeDrained: lambda of: node_word(of.word),
    events.NodeReturned: returned,
    Unanswered: waits_for,
    events.OutageEnded: lambda of: f"{target(of.outage.target)} answers again after {duration(of.lasted_s)}",
    events.OutageTooLong: lambda of: (
        f"no progress for {duration(of.waited_s)} (--give-up-after): {waits_for(of.outage)}"
    ),
    Newest: went_back,
    events.NodeJoined: lambda of: f"{of.host} has joined the cluster",
}
"""What words each part of a reason."""
