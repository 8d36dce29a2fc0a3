"""The options of ``laggard run`` for click, made from the fields of :class:`JobOptions`."""

from __future__ import annotations

import string
from collections.abc import Callable, Sequence
from dataclasses import Field, fields
from itertools import chain
from pathlib import Path
from types import NoneType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import click

from laggard.resilience.command.option import Option, declared_in, flag_of
from laggard.resilience.command.options import JobOptions

_Command = TypeVar("_Command", bound=Callable[..., Any])


def run_options(command: _Command) -> _Command:
    """Give a command all options of ``laggard run``, in the order of its help."""
    return options_of_run(*(each.name for each in fields(JobOptions)))(command)


def options_of_run(*names: str) -> Callable[[_Command], _Command]:
    """Give a command some of these options, in the order of their names."""
    kinds, declared = get_type_hints(JobOptions), {each.name: each for each in fields(JobOptions)}

    def give(command: _Command) -> _Command:
        for name in reversed(names):
            command = _click_option(declared[name], kinds[name])(command)
        return command

    return give


HISTORY_OPTIONS = ("node_history", "state_password_file", "state_ca")
"""Where the site's memory of its nodes is, and what it takes to use it."""


def passed_on(as_typed: Sequence[str], arguments: Sequence[str]) -> list[str]:
    """Return the options of laggard's that stand after the program; none if ``--`` stands before it."""
    if "--" in as_typed[: len(as_typed) - len(arguments)]:
        return []
    ours = {flag_of(each.name) for each in fields(JobOptions)}
    return [each for each in arguments if each.partition("=")[0] in ours]


def _click_option(each: Field[Any], kind: Any) -> Callable[[_Command], _Command]:
    declared, flag, is_flag = declared_in(each), flag_of(each.name), kind is bool
    if each.default is True:
        flag = f"{flag}/--no-{flag.removeprefix('--')}"
    takes_several = get_origin(kind) is tuple
    return click.option(
        *filter(None, (flag, declared.short)),
        each.name,
        type=None if is_flag else _parameter_type(kind, declared),
        is_flag=is_flag,
        multiple=takes_several,
        callback=_each_once if takes_several else None,
        default=each.default,
        show_default=not is_flag and each.default is not None and not declared.unset,
        metavar=declared.metavar,
        envvar=declared.also.partition("=")[0] or None,
        help=declared.full_help,
    )


def _parameter_type(kind: Any, declared: Option) -> Any:
    if NoneType in get_args(kind):
        (kind,) = (each for each in get_args(kind) if each is not NoneType)
    if get_origin(kind) is tuple:
        return _Choices(get_args(get_args(kind)[0]))
    if get_origin(kind) is Literal:
        return click.Choice(get_args(kind))
    if kind is Path:
        is_folder, exists = declared.metavar == "DIR", declared.exists
        return click.Path(path_type=Path, exists=exists, file_okay=not is_folder, dir_okay=not exists)
    if declared.least is None:
        return kind
    return _WholeNumber(declared) if kind is int else _Number(declared)


class _Choices(click.Choice[str]):
    """One or more of some words, separated by commas."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the words."""
        return tuple(super(_Choices, self).convert(word, param, ctx) for word in value.split(","))


def _each_once(_context: click.Context, _option: click.Parameter, given: tuple[tuple[str, ...], ...]) -> Any:
    return tuple(dict.fromkeys(chain.from_iterable(given)))


class _Number(click.FloatRange):
    """A number in a range, whose refusals say what is accepted."""

    what = "a number"
    of: Callable[[str], float] = float

    def __init__(self, declared: Option) -> None:
        super().__init__(declared.least, declared.most)
        self.unset = declared.unset

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number."""
        number = self._number(str(value))
        if number is None:
            bare = str(value).rstrip(string.ascii_letters + " ")
            way_out = f": write {bare}, without a unit" if self._number(bare) is not None else ""
            if param is not None and str(value).startswith("--"):
                way_out = f": write {param.opts[0]}={param.metavar}"
            self.fail(f"{str(value)!r} is not {self.what}{way_out}", param, ctx)
        if self.min is not None and number < self.min:
            without = f"; without it: {self.unset}" if self.unset else ""
            self.fail(f"{value} is less than {self.min:g}, the least that it can be{without}", param, ctx)
        if self.max is not None and number > self.max:
            self.fail(f"{value} is more than {self.max:g}, the most that it can be", param, ctx)
        return number

    def _number(self, text: str) -> float | None:
        try:
            return self.of(text)
        except ValueError:
            return None


class _WholeNumber(_Number):
    what, of = "a whole number", int
