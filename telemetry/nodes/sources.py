"""The sources of answers to queries: one store in this process, or the stores of all nodes.

Each node filters and downsamples its own series. Overviews of many nodes, and what nodes no longer have, are answered
from the rollups that the nodes have sent.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import orjson

from laggard.kvstore.series.sample_store import Newest, SampleStore, SeriesKey, key_of
from laggard.kvstore.series.timeseries import TimeSeries, distinct_times
from laggard.kvstore.values.decoding import Value
from laggard.telemetry.errors import NoAnswerError, NodeError, QueryTooLargeError
from laggard.telemetry.nodes.bus import NodeAsker, Replies
from laggard.telemetry.query.downsampling import reduce_runs
from laggard.telemetry.query.engine import Answer, Span, evaluate, is_wanted
from laggard.telemetry.query.parsing import SubQuery, sub_query_from_json
from laggard.telemetry.store.chunks import chunk_from_bytes, pack_rows
from laggard.telemetry.store.history import Downsampled, History, Summarized, spec_of
from laggard.telemetry.store.program_metrics import answer_program
from laggard.telemetry.store.rollups import Rollups, Run
from laggard.telemetry.store.summaries import COLUMNS

# Limit for all nodes together. The state server disconnects a subscriber that has more than 32 MiB pending.
MAX_TRAVELLING_SAMPLES = 1_500_000
MAX_TRAVELLING_SERIES = 20_000
ROLLUPS_ABOVE_NODES = 16
# What combines two parts of a bucket, of those functions for which the parts' values are enough.
_OF_PARTS = {"sum": "sum", "count": "sum", "min": "min", "max": "max", "last": "last"}
_TOO_MUCH = "too many samples: ask for a shorter range, fewer series, fewer nodes, or downsample further"


_Each = TypeVar("_Each")


@dataclass(frozen=True, slots=True)
class Listed(Generic[_Each]):
    """A list of what a source has."""

    items: list[_Each]
    missing: list[str] = field(default_factory=list)  # the nodes that did not answer


@dataclass(slots=True)
class Found:
    """An answer."""

    answers: list[Answer]  # the series
    missing: list[str] = field(default_factory=list)  # the nodes that did not answer
    # Width of the buckets whose averages stood for samples that are no longer there; 0: the answer is exact
    approximate_us: int = 0


class Source(Protocol):
    """Answers queries."""

    def evaluate(self, query: SubQuery, span: Span) -> Found:
        """Answer one sub-query."""

    def evaluate_all(self, asked: Sequence[tuple[SubQuery, Span]]) -> list[Found]:
        """Answer several at once; together they may be too large where each alone is not."""

    def series_keys(self, metric: str = "") -> Listed[SeriesKey]:
        """Return the keys of all series, or of one metric's."""

    def newest(self) -> Listed[Newest]:
        """Return the newest sample of every series."""


class LocalSource:
    """Answers from one store of this process."""

    def __init__(self, history: History, deadline_s: float = math.inf) -> None:
        self._history = history
        self._deadline_s = deadline_s  # for others' queries, whose regular expressions may be slow

    def evaluate(self, query: SubQuery, span: Span) -> Found:
        """Answer one sub-query."""
        found = _downsampled(self._history, query, span, time.monotonic() + self._deadline_s)
        return Found(evaluate(query, span, found.series, downsampled=True), [], found.approximate_us)

    def evaluate_all(self, asked: Sequence[tuple[SubQuery, Span]]) -> list[Found]:
        """Answer several sub-queries."""
        return [self.evaluate(*each) for each in asked]

    def series_keys(self, metric: str = "") -> Listed[SeriesKey]:
        """Return the keys of all series, or of one metric's."""
        return Listed([key for key in self._history.series_keys() if metric in {"", key[0]}])

    def newest(self) -> Listed[Newest]:
        """Return the newest sample of every series."""
        return Listed(self._history.samples.newest())


class NodesSource:
    """Answers from the stores of all nodes of a job, and from their rollups."""

    def __init__(
        self,
        asker: NodeAsker,
        rollups: Rollups,
        expected: Callable[[], Collection[str]] = frozenset,
        silent: Callable[[], Collection[str]] = frozenset,
    ) -> None:
        self._asker = asker  # asks the nodes
        self._rollups = rollups  # the rollups that the nodes have sent
        self._expected = expected  # returns the nodes that should answer
        self._silent = silent  # returns those of them that have not answered of late

    def evaluate(self, query: SubQuery, span: Span) -> Found:
        """Answer one sub-query; nodes that do not answer in time are listed as missing."""
        return self.evaluate_all([(query, span)])[0]

    def evaluate_all(self, asked: Sequence[tuple[SubQuery, Span]]) -> list[Found]:
        """Answer several sub-queries, with one question to the nodes."""
        hosts = self._hosts()
        rolled = [len(hosts) > ROLLUPS_ABOVE_NODES and self._rollups.can_answer(*each) for each in asked]
        rest = [each for each, is_rolled in zip(asked, rolled, strict=True) if not is_rolled]
        replies = self._ask(rest, hosts) if rest else Replies()
        places = iter(range(len(rest)))
        return [
            self._rolled_up(*each) if is_rolled else self._found(*each, replies, next(places))
            for each, is_rolled in zip(asked, rolled, strict=True)
        ]

    def _rolled_up(self, query: SubQuery, span: Span) -> Found:
        series = self._rollups.history.downsampled(query, span).series
        return Found(evaluate(query, span, series, downsampled=True), sorted(self._silent()))

    def _found(self, query: SubQuery, span: Span, replies: Replies, place: int) -> Found:
        """Return the nodes' answers to one of the sub-queries that they were asked, with what is known beside them."""
        beside = self._rollups.beside(query, span, _answered(replies))
        if replies.received and not replies.by_host and not beside.series:
            raise NoAnswerError(self._asker.deadline_s)
        packed = [reply["answers"][place] for reply in replies.by_host.values()]
        approximate_us = max([beside.approximate_us, *(each["approximate_us"] for each in packed)])
        series = [each for answer in packed for each in unpack_series(answer)]
        spec = spec_of(query, span)
        joined, exact = _joined(series, beside.series, spec.function)
        answers = evaluate(query, span, joined, downsampled=True)
        return Found(answers, replies.missing, max(approximate_us, 0 if exact else spec.interval_us))

    def series_keys(self, metric: str = "") -> Listed[SeriesKey]:
        """Return the keys of all series, or of one metric's."""
        hosts = self._hosts()
        known = {key for key in self._rollups.history.series_keys() if metric in {"", key[0]}}
        if len(hosts) > ROLLUPS_ABOVE_NODES:
            return Listed(sorted(known), sorted(self._silent()))
        replies = self._asker.ask({"kind": "keys", "metric": metric}, hosts=hosts)
        found = {
            (name, tuple(zip(tags[::2], tags[1::2], strict=True)))
            for reply in replies.by_host.values()
            for name, tags in reply
        }
        return Listed(sorted(found | known), replies.missing)

    def newest(self) -> Listed[Newest]:
        """Return the newest sample of every series."""
        replies = self._asker.ask({"kind": "newest"}, hosts=self._hosts())
        return Listed([Newest(**each) for reply in replies.by_host.values() for each in reply], replies.missing)

    def _hosts(self) -> list[str]:
        """Return the nodes to ask: those that listen, and those that should."""
        return sorted({*self._asker.hosts(), *self._expected()})

    def _ask(self, asked: Sequence[tuple[SubQuery, Span]], hosts: Sequence[str]) -> Replies:
        question = {
            "kind": "series",
            "asked": [{"query": dict(query.source), **asdict(span)} for query, span in asked],
            "samples": MAX_TRAVELLING_SAMPLES // max(1, len(hosts)),
        }
        try:
            return self._asker.ask(question, hosts=hosts)
        except NodeError as refusal:
            raise QueryTooLargeError(str(refusal)) from refusal


def answer_question(history: History, run: Run, question: Mapping[str, Any]) -> Value:
    """Answer one of :class:`NodesSource`'s questions for one node, in a run of its telemetry process."""
    match question["kind"]:
        case "series":
            return {"run": [run.name, run.since_us], "answers": _answers(history, question)}
        case "samples":
            since_us = max(history.began_us, history.samples.complete_from_us)
            return {"since_us": since_us, **pack_series(_samples(history.samples, question), question["samples"])}
        case "everything":
            summaries, series = history.everything(question["metric"])
            return {"summaries": pack_summaries(summaries), **pack_series(series, MAX_TRAVELLING_SAMPLES)}
        case "keys":
            keys = [key for key in history.series_keys() if question["metric"] in {"", key[0]}]
            return [[metric, [part for pair in tags for part in pair]] for metric, tags in keys]
        case "program":
            about, lines = answer_program(history, question)
            return {**about, "lines": pack_series(lines, MAX_TRAVELLING_SAMPLES)}
        case "newest":
            return [asdict(each) for each in history.samples.newest()]
        case "ping":
            dropped = history.samples.size().dropped
            return {"clock_s": time.time(), "dropped": dropped, "run": run.name}
        case unknown:
            raise ValueError(f"unknown question {unknown!r}")


def _answers(history: History, question: Mapping[str, Any]) -> list[Value]:
    answers: list[Value] = []
    left = question["samples"]
    for each in question["asked"]:
        span = Span(each["start_us"], each["end_us"], each["milliseconds"])
        query = sub_query_from_json(each["query"], 0)
        found = _downsampled(history, query, span, question.get("until_s", math.inf))
        answers.append({"approximate_us": found.approximate_us, **pack_series(found.series, left)})
        left -= sum(len(series.times_us) for series in found.series)
    return answers


def pack_series(series: Iterable[TimeSeries], max_samples: int) -> dict[str, Value]:
    """Pack series for sending."""
    chosen: list[TimeSeries] = []
    samples = 0
    for each in series:
        samples += len(each.times_us)
        chosen.append(each)
        if samples > max_samples or len(chosen) > MAX_TRAVELLING_SERIES:
            raise ValueError(_TOO_MUCH)
    places, grids = distinct_times(chosen)  # series that share their times send them once
    about = [[each.metric, dict(each.tags), place] for each, place in zip(chosen, places, strict=True)]
    return {
        "series": orjson.dumps(about),
        "grids": grids,
        "values": np.concatenate([each.values for each in chosen] or [np.empty(0)]),
    }


def pack_summaries(summaries: Iterable[Summarized]) -> Value:
    """Pack summaries for sending."""
    return [
        [each.key[0], [part for pair in each.key[1] for part in pair], pack_rows(each.rows, each.width_us).to_bytes()]
        for each in summaries
    ]


def unpack_summaries(packed: Value) -> list[Summarized]:
    """Return the summaries that :func:`pack_summaries` packed."""
    chunks = [(metric, tags, chunk_from_bytes(data)) for metric, tags, data in packed]
    return [
        Summarized(chunk.width_us, (metric, tuple(zip(tags[::2], tags[1::2], strict=True))), chunk.unpack(COLUMNS))
        for metric, tags, chunk in chunks
    ]


def unpack_series(packed: Value) -> list[TimeSeries]:
    """Return the series that :func:`pack_series` packed."""
    grids, values = packed["grids"], packed["values"]
    series, begin = [], 0
    for metric, tags, place in orjson.loads(packed["series"]):
        end = begin + len(grids[place])
        series.append(TimeSeries(metric, tags, grids[place], values[begin:end]))
        begin = end
    return series


def _answered(replies: Replies) -> dict[str, Run]:
    """Return the runs that have answered, by their names."""
    return {reply["run"][0]: Run(host, *reply["run"]) for host, reply in replies.by_host.items()}


def _joined(
    series: Sequence[TimeSeries], earlier: Sequence[TimeSeries], function: str
) -> tuple[list[TimeSeries], bool]:
    """Return series together with what is known of earlier runs of their nodes, and whether that is exact."""
    before = {key_of(each.metric, each.tags): each for each in earlier}
    found, exact = [], True
    for each in series:
        first = before.pop(key_of(each.metric, each.tags), None)
        if first is None:
            found.append(each)
            continue
        times_us = np.concatenate([first.times_us, each.times_us])
        order = np.argsort(times_us, kind="stable")  # what the later run has comes last
        times_us, values = times_us[order], np.concatenate([first.values, each.values])[order]
        begins = np.flatnonzero(np.diff(times_us, prepend=-1))
        exact = exact and (function in _OF_PARTS or len(begins) == len(times_us))
        reduced = reduce_runs(_OF_PARTS.get(function, "last"), values, begins)
        found.append(replace(each, times_us=times_us[begins], values=reduced))
    return [*found, *before.values()], exact


def _downsampled(history: History, query: SubQuery, span: Span, until_s: float) -> Downsampled:
    def wanted(tags: Mapping[str, str]) -> bool:
        if time.monotonic() > until_s:  # a regular expression on many long values can be slow
            raise QueryTooLargeError("the filters take too long: use simpler ones")
        return is_wanted(query, tags)

    is_filtered = query.filters or query.explicit_tags
    return history.downsampled(query, span, wanted if is_filtered else lambda _: True)


def _samples(store: SampleStore, question: Mapping[str, Any]) -> Iterable[TimeSeries]:
    tags, keys = question["tags"], question["tag_keys"]

    def wanted(found: Mapping[str, str]) -> bool:
        return tags.items() <= found.items() and all(key in found for key in keys)

    return store.read(question["metrics"], question["start_us"], question["end_us"], wanted)
