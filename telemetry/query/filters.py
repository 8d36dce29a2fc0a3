"""Filters on tag values, by OpenTSDB's names and rules.

https://opentsdb.net/docs/build/html/user_guide/query/filters.html
"""

from __future__ import annotations

import fnmatch
import glob
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from laggard.telemetry.errors import BadQueryError

MAX_PATTERN = 1024
_MAX_REPEATS = 3
# What stands for one character of a value: one of a set, or a sign without its meaning.
_ONE_CHARACTER = re.compile(r"\[\^?\]?(?:\\.|[^\]\\])*\]|\\[^1-9]", re.DOTALL)
# A group that is repeated takes exponential time; the others take it in other ways.
_UNBOUNDED = re.compile(r"\)[*+{]|\(\?(?!:)|\\[1-9]")
_TYPED = re.compile(r"([a-z_]+)\((.*)\)", re.DOTALL)

Matcher = Callable[[str | None], bool]
"""Takes a series' value of the filter's tag, or None if it has no such tag."""

FILTER_TYPES: Mapping[str, str] = {
    "literal_or": "The value is one of those listed: node1|node2.",
    "iliteral_or": "The value is one of those listed; case is ignored.",
    "not_literal_or": "The value is none of those listed.",
    "not_iliteral_or": "The value is none of those listed; case is ignored.",
    "wildcard": "The value matches; * stands for any characters: node*.",
    "iwildcard": "The value matches; * stands for any characters and case is ignored.",
    "regexp": "The regular expression is found in the value: node[0-9]+.",
}


@dataclass(frozen=True, slots=True)
class TagFilter:
    """A condition on one tag; with ``group_by`` the answer has a series for each value of the tag."""

    kind: str
    key: str
    expression: str
    group_by: bool
    accepts: Matcher = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.kind not in FILTER_TYPES:
            raise BadQueryError(f"unknown filter type {self.kind[:80]!r}: use one of {', '.join(FILTER_TYPES)}")
        if not self.key:
            raise BadQueryError(f"the {self.kind} filter has no tag key (tagk)")
        if len(self.expression) > MAX_PATTERN and self.kind in {"regexp", "wildcard", "iwildcard"}:
            raise BadQueryError(f"the {self.kind} of {self.key!r} is longer than {MAX_PATTERN} characters")
        object.__setattr__(self, "accepts", _matcher(self.kind, self.expression))


def matches(filters: Collection[TagFilter], tags: Mapping[str, str], *, explicit_tags: bool = False) -> bool:
    """Return whether a series with these tags passes all filters; with ``explicit_tags`` it may have no other tags."""
    if explicit_tags and {f.key for f in filters} != set(tags):
        return False
    return all(f.accepts(tags.get(f.key)) for f in filters)


def filter_from_tag(key: str, value: str, *, group_by: bool) -> TagFilter:
    """Parse a value of a ``tags`` map or in braces: ``*``, ``a|b``, ``web*`` or ``type(expression)``."""
    if (typed := _TYPED.fullmatch(value)) is not None:
        return TagFilter(typed[1], key, typed[2], group_by)
    if value == "*":
        return TagFilter("wildcard", key, value, group_by)
    if "*" in value:
        return TagFilter("iwildcard", key, value, group_by)
    return TagFilter("literal_or", key, value, group_by)


def _matcher(kind: str, expression: str) -> Matcher:
    match kind:
        case "literal_or" | "iliteral_or" | "not_literal_or" | "not_iliteral_or":
            return _literals(expression, folded="iliteral" in kind, wanted=not kind.startswith("not_"))
        case "wildcard" | "iwildcard":
            return _wildcard(expression, folded=kind == "iwildcard")
        case _:
            return _regexp(expression)


def _literals(expression: str, *, folded: bool, wanted: bool) -> Matcher:
    fold = str.casefold if folded else str
    literals = frozenset(fold(part) for part in expression.split("|") if part)
    if not literals:
        raise BadQueryError("a list of literals must not be empty")
    if wanted:
        return lambda value: value is not None and fold(value) in literals
    return lambda value: value is None or fold(value) not in literals


def _wildcard(expression: str, *, folded: bool) -> Matcher:
    if "*" not in expression:
        raise BadQueryError(f"the wildcard {expression!r} has no *")
    fold = str.casefold if folded else str
    # Such a pattern has no choice but the first place where a part is found.
    pattern = re.compile(fnmatch.translate("*".join(map(glob.escape, fold(expression).split("*")))))
    return lambda value: value is not None and pattern.match(fold(value)) is not None


def _regexp(expression: str) -> Matcher:
    plain = _ONE_CHARACTER.sub("_", expression)
    if _UNBOUNDED.search(plain):
        raise BadQueryError("a regular expression may repeat single characters only, and not look around or refer back")
    if sum(map(plain.count, "*+{")) > _MAX_REPEATS:
        raise BadQueryError(f"the regular expression {expression[:80]!r} has more than {_MAX_REPEATS} repeats")
    try:
        pattern = re.compile(expression)
    except (re.error, OverflowError, RecursionError) as error:
        raise BadQueryError(f"{expression[:80]!r} is not a valid regular expression: {error}") from error
    return lambda value: value is not None and pattern.search(value) is not None
