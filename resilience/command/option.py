"""How an option of the command line is declared: as a field of a dataclass. Pure."""

from __future__ import annotations

from dataclasses import Field, dataclass, field
from typing import Any, TypeVar

_KEY = "option"
_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """An option as the command line shows it; its name, type and default are those of the field."""

    help: str  # what it is for, in sentences
    metavar: str | None = None  # what stands for its value
    short: str | None = None  # a second name, of one letter
    least: float | None = None  # limits of a number
    most: float | None = None
    unset: str = ""  # what holds without the option, where the default itself does not say it
    also: str = ""  # the environment variable that sets it as well, perhaps with a value
    # Options, one of which it needs to have an effect: `--detect`, or with a value `--detect=slow-link`
    needs: tuple[str, ...] = ()
    exists: bool = False  # whether the file must exist

    @property
    def full_help(self) -> str:
        """The help, with what holds without the option."""
        notes = [f"{title}: {text}" for title, text in (("default", self.unset), ("also", self.also)) if text]
        return f"{self.help}  [{'; '.join(notes)}]" if notes else self.help


def option(default: _Value, help: str, metavar: str | None = None, **more: Any) -> _Value:  # noqa: A002 - click's word
    """Declare an option: the field's default, and what :class:`Option` takes."""
    declared: _Value = field(default=default, metadata={_KEY: Option(help=help, metavar=metavar, **more)})
    return declared


def declared_in(each: Field[Any]) -> Option:
    """Return the option that a field declares."""
    declared: Option = each.metadata[_KEY]
    return declared


def flag_of(name: str) -> str:
    """Return the flag of a field: ``--grace`` of ``grace_s``."""
    return "--" + name.removesuffix("_s").replace("_", "-")
