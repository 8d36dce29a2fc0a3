"""Puts what detectors find into words. Pure: each function makes a text of a record, and nothing reads one back."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from laggard.detectors.evidence import (
    Accused,
    Price,
    Reason,
    ReasonKind,
    Saved,
    Side,
    Slow,
    SlowLink,
    StillSlow,
    Subject,
    Unreachable,
    Weighed,
    WellAgain,
    WrongResults,
)
from laggard.detectors.notices import (
    Answering,
    Blind,
    Failed,
    FailedAt,
    Flapping,
    Group,
    GroupSlower,
    LinkBusy,
    LinkNotice,
    LinksSlower,
    Noisy,
    Notice,
    PairUnreachable,
    SamplesRefused,
    Shift,
    Silent,
)
from laggard.node_names import joined

if TYPE_CHECKING:
    from laggard.detectors.verdict import Evidence, Verdict
    from laggard.kvstore.series.streams import Why

_TIMES_FROM = 3.0  # "15.4 times as slow" reads better than "1440 % slower"
_DAY_S = 86400.0
_DATE, _TIME = "%Y-%m-%d", "%H:%M:%S"
_LATEST_S = 253402300799.0  # in the year 9999
_MOST = 1e12
_LARGE = ((1e9, " billion"), (1e6, " million"))
_ORDINALS = {2: "second", 3: "third"}
_SIDES: dict[Side, tuple[str, str]] = {
    "sends": ("sends", "to"),
    "receives": ("receives", "from"),
    "both": ("sends and receives", "to and from"),
}
_FAILED: dict[FailedAt, str] = {
    "round": "a round could not be judged",
    "tags": "the tags of a device could not be used",
    "look": "what is new could not be read",
    "end": "nothing is judged any more: the detector has ended",
}
_REFUSED: dict[Why, str] = {
    "malformed": "{!r} is malformed",
    "of another node": "a process is believed about its own node only, not about {!r}",
    "not of the launch": "this launch has no {!r}",
    "too many": "{!r} is one name too many for a node",
}
_REASONS: dict[ReasonKind, str] = {
    "no reserve": "no node is in reserve, and {:.0f} nodes at this pace do more than {:.0f}",
    "too little time left": "in the {:.0f} s that remain it would not pay",
    "as fast as ever": "it is as fast as ever",
    "as slow as peers": "its typical peer is hardly faster",
    "a node less": "no node is in reserve, and one node less would lose {:.0f} s more",
    "lost much together": "its incidents together are likely to lose more than that",
    "a phase": "it looks like a phase, which ends by itself",
    "others ended": "those before it in this job lasted as long and ended by themselves",
    "last one in vain": "the last restart for its place did not help",
    "likely to lose more": "it is likely to lose more than that",
    "asked before": "one was asked for before",
    "made anyway": "a restart is made anyway",
    "busier": "it was hardly slower than its peers when idle, and is busier than they are ({:.0f} % against {:.0f} %)",
    "device is well": "test kernels find its device well: its work or a link is the reason",
    "not probed since": "test kernels have not run on its device since then",
    "slow elsewhere": "it was slow on {host}, too: its share of the work may be larger",
    "unknown shares": "its share of the work may be larger: groups say which ranks have equal shares",
}


# -- verdicts ----------------------------------------------------------------------------------------------------------


def verdict(found: Verdict) -> str:
    """Return a verdict in full."""
    return f"{found.evidence} ({found.severity}, likely cause: {found.cause}, action: {found.action})"


def evidence(about: Evidence) -> str:
    """Return the sentence of a verdict."""
    if isinstance(about.found, Accused):
        return f"{about.found.detector} accuses {', '.join(about.found.hosts)}"
    if isinstance(about.found, SlowLink):
        return f"{slow_link(about.found)}{_decision(about)}"
    return f"{accused(about)}: {finding(about)}"


def accused(about: Evidence) -> str:
    """Return whom a verdict is about: ``rank 3 on node2 gpu 1``."""
    place = subject((about.host, about.gpu))
    return f"{about.worker} on {place}" if about.worker else place


def subject(whom: Subject) -> str:
    """Return the name of a device, rank or node: ``node1 gpu 0``, ``rank 3 on node1`` or ``node1``."""
    host, part = whom
    if part is None:
        return host
    return f"{part} on {host}" if " " in part else f"{host} gpu {part}"


def finding(about: Evidence) -> str:
    """Return what was found, where, and what was decided about a restart."""
    section = f", in the section {about.section}" if about.section else ""
    match about.found:
        case Slow() as found:
            return f"{_slow(found, section)}{_decision(about)}"
        case StillSlow() as found:
            pace = f"at least {100 * (found.slowdown - 1):.0f} % slower"
            if found.slowdown >= _TIMES_FROM:
                pace = f"at least {found.slowdown:.1f} times as slow as usual"
            lost = "" if about.weighed is None else f", {_lost(about.weighed)}"
            return f"still slow{' at times' if found.at_times else ''}: {pace}{lost}{section}{_decision(about)}"
        case WellAgain() as found:
            return f"was slow for {span(found.slow_s)}, {span(found.lost_s)} lost{section}{_again(found)}"
        case WrongResults(what):
            return what
        case Unreachable(why):
            return f"no other node can reach it: {why}"
        case other:
            raise TypeError(f"{other!r} has words of its own")


def _slow(found: Slow, section: str) -> str:
    many = "ranks" if section else "devices"
    reference = {
        "peers": f"its {_peers(found.n_peers)}",
        "own past": f"its own past and than {_peers(found.n_peers)}",
        "other nodes": f"the other {found.n_peers} nodes",
    }[found.reference]
    parts = [f"{how_slow(found.slowdown)} {reference}{section}"]
    if found.since_s is not None:
        parts[0] += f"{',' if section else ''} since {_moment(found.since_s, found.now_s)}"
    if found.n_devices:
        parts.append(
            f"by its {found.n_devices} {many} together" if found.are_together else f"all its {found.n_devices} {many}"
        )
    if found.share is not None:
        parts.append(f"at times: in {100 * found.share:.0f} % of its last rounds")
    if found.jobs is None:
        return ", ".join(parts)
    comma = "," if found.since_s is not None or section or len(parts) > 1 else ""
    lasts = f"{comma} for {_rounds(found.rounds)}; by chance less than once in {_many(found.jobs)} jobs"
    return f"{', '.join(parts)}{lasts}"


def _again(found: WellAgain) -> str:
    said = ""
    if found.count > 1:
        said = f"; the {_ORDINALS.get(found.count, f'{found.count}th')} time, {span(found.sum_s)} lost in all"
    if found.instead_of is not None:
        instead = subject(found.instead_of)
        return f"{said}; {instead} in its place was slow in the same way: the program's own, no restart for it"
    likely = "; looks like a phase" if found.expected else ""
    return f"{said}{likely}; more of the same is not reported for a day"


def slow_link(found: SlowLink) -> str:
    """Return who is slow, how slow, compared with what, and for how many rounds."""
    slow, lasts = how_slow(found.slowdown), _rounds(found.rounds)
    if found.kind in ("node", "leaf"):
        verb, to_whom = _SIDES[found.side]
        who = found.names[0] if found.kind == "node" else f"leaf {found.names[0]}"
        said = f"{who} {verb} {slow} its {_peers(found.n_peers)} ({to_whom} all its partners), {lasts}"
        # Two links that are slow look like that, too.
        return f"{said}; or both of its links are slow" if found.kind == "node" and found.n_peers == 2 else said
    path = " to ".join(found.names) + (" and back" if found.side == "both" else "")
    if found.kind == "pair":
        return f"{path}: {slow} the other transfers of both, {lasts}"
    return f"{path}: {slow} before or the other way, {lasts}; either end may be at fault"


# -- restarts ----------------------------------------------------------------------------------------------------------


def _decision(about: Evidence) -> str:
    weighed = about.weighed
    if weighed is None:
        return ""
    costs = f"a restart costs {span(weighed.price.cost_s)} ({known_from(weighed.price)})"
    if about.at_times:
        return f"; a restart once its incidents have lost enough together; {costs}"
    if isinstance(about.found, StillSlow):
        return f"; {costs}: {_when(weighed)}"
    if not weighed.price.cost_s:
        return "" if weighed.restart or weighed.why is None else f"; no restart, since {reason(weighed.why)}"
    return f"; {_lost(weighed)}; {costs}: {_when(weighed)}"


def _when(weighed: Weighed) -> str:
    because = "" if weighed.why is None else f", since {reason(weighed.why)}"
    if weighed.restart:
        return f"now{because}"
    if weighed.in_s is None:
        return f"no restart{because}"
    when, form = ("at", _TIME) if weighed.in_s < _DAY_S else ("on", _DATE)
    return f"not yet, {when} {_utc(weighed.now_s + weighed.in_s, form)}{because}"


def _lost(weighed: Weighed) -> str:
    return f"{span(weighed.lost_s)} lost in {span(weighed.slow_s)}"


def reason(why: Reason) -> str:
    """Return why a restart is made or not."""
    return _REASONS[why.kind].format(*why.numbers, host=why.host)


_UNSAVED: dict[Saved, str] = {
    "commit": "to the first progress, {} since the last commit",
    "checkpoint": "to the first progress, {} since the last checkpoint",
    "unknown": "to the first progress, {} of work assumed to be lost",
    "done again": "until a relaunch was as far as the launch before",
}


def known_from(price: Price) -> str:
    """Return how it is known what a restart costs."""
    if price.source == "given":
        return "as given"
    if price.source == "assumed":
        return "assumed, since the program has shown no progress yet"
    least = "the least that is assumed; " if price.is_least else ""
    return f"{least}{span(price.start_s)} {_UNSAVED[price.saved].format(span(price.unsaved_s))}"


# -- notices -----------------------------------------------------------------------------------------------------------


def notice(about: Notice) -> str:
    """Return what a user should know."""
    match about:
        case GroupSlower(group, shift):
            return f"{_group(group)} {_shift(shift, f'no single {_rank_or_device(group)} is at fault')}"
        case LinksSlower(sides, shift):
            links = " and ".join(f"{{{joined(names)}}}" for names in sides)
            links = f"the links between {links}" if sides else "all links"
            return f"{links} {_shift(shift, 'what they share is at fault, such as an uplink')}"
        case Flapping(host, downs, seconds, up_s):
            over = f" has stayed up for {span(up_s)}: it" if up_s else ""
            return f"{host}'s link{over} went down {downs} times in {span(seconds)}"
        case Noisy():
            how, when = ("wander", "over many rounds") if about.lasts else ("scatter", "from round to round")
            least = f"{100 * (about.allowed - 1):.0f} %"
            limit = f"a slowdown by less than {least} is found late, or not at all"
            if about.lasts:
                limit = f"only a slowdown by more than {least} can be told from noise"
            return f"{_group(about.group)}: readings {how} by {100 * about.noise:.1f} % {when}, so {limit}"
        case LinkNotice():
            causes = [str(cause) for cause in about.causes if cause.is_known]
            likely = f"; likely cause: {', or '.join(sorted(causes))}" if causes else ""
            return f"{slow_link(about.link)}{likely}"
        case LinkBusy(host, rounds):
            return f"{host}: other traffic on its NIC in {rounds} rounds in a row; its links are not judged meanwhile"
        case PairUnreachable((one, other), why):
            return f"{one} and {other} do not reach each other, though both reach others: {why}"
        case Silent(devices, why):
            return f"no good reading from {_names(devices)} for three rounds{f': {why}' if why else ''}"
        case Answering(devices):
            again = f"give{'s' if len(devices) == 1 else ''} readings again"
            return f"{_names(devices)} {again}; gaps of less than 10 min are not reported for an hour"
        case Blind(why):
            return f"no reading so far{f': {why}' if why else ''}"
        case Failed(what, error):
            return f"{_FAILED[what]}: {error}"
        case SamplesRefused(node, why, example, count):
            many = "1 sample was" if count == 1 else f"{count:,} samples were"
            return f"{many} refused{f' from {node}' if node else ''}: {_REFUSED[why].format(example)}"


def _shift(shift: Shift, fault: str) -> str:
    """Return what became of something, and since when; if it is slower, also whose fault that is."""
    begun_s = shift.over_s if shift.is_over else shift.since_s
    since = "" if begun_s is None else f" since {_moment(begun_s, None)} UTC"
    if not shift.is_over:
        return f"are {how_slow(shift.ratio)} before{since}: {fault}"
    lasted = "" if shift.since_s is None or shift.over_s is None else f" for {span(shift.over_s - shift.since_s)}"
    return f"are as fast as before again{since}: they were {how_slow(shift.ratio)} that{lasted}"


def _rank_or_device(group: Group) -> str:
    return "rank" if group.are_ranks else "device"


def _group(group: Group) -> str:
    many = f"{_rank_or_device(group)}s"
    if group.size == group.n_all:
        return f"all {group.n_all} {many}"
    return f"the {group.size} {many} like {subject(group.first)}"


def _names(devices: tuple[tuple[str, str], ...]) -> str:
    return ", ".join(f"{host} gpu {gpu}" if gpu else host for host, gpu in devices)


# -- numbers -----------------------------------------------------------------------------------------------------------


def how_slow(slowdown: float) -> str:
    """Return a slowdown before its reference: ``9.8 times as slow as``, ``12 % slower than``."""
    if slowdown >= _TIMES_FROM:
        return f"{slowdown:.1f} times as slow as"
    percent = 100 * (slowdown - 1)
    return f"{percent:.{int(percent < 10)}f} % slower than"


def span(seconds: float) -> str:
    """Return a length of time as a verdict says it: ``5.5 s``, ``170 s``, ``12 min``, ``3.4 h``."""
    if seconds < 9.95:
        return f"{seconds:.1f} s".replace(".0 s", " s")
    if seconds < 599.5:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5970 else f"{seconds / 3600:.1f} h"


def _moment(time_s: float, now_s: float | None) -> str:
    """Return the time of day, after its date if that is not today's."""
    is_today = now_s is not None and _utc(time_s, _DATE) == _utc(now_s, _DATE)
    return _utc(time_s, _TIME if is_today else f"{_DATE} {_TIME}")


def _utc(time_s: float, form: str) -> str:
    """Return a Unix time in UTC, or the nearest one that a calendar has."""
    return f"{datetime.fromtimestamp(min(max(0.0, time_s), _LATEST_S), UTC):{form}}"


def _peers(number: int) -> str:
    return "only peer" if number == 1 else f"{number} peers"


def _rounds(number: int) -> str:
    return "1 round" if number == 1 else f"{number} rounds"


def _many(number: float) -> str:
    """Return a large number as one says it, in two digits: ``40,000``, ``3.1 million``."""
    number = float(f"{number:.1e}")
    if number >= _MOST:
        return "a million million"
    least, word = next(((least, word) for least, word in _LARGE if number >= least), (1.0, ""))
    return f"{number / least:,.3g}{word}" if word else f"{number:,.0f}"
