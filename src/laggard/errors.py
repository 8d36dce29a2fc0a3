"""The root of every error that laggard raises on purpose.

Each package has a tree of its own below it, in its module ``errors``; ``except LaggardError`` catches them all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, dataclass_transform


@dataclass_transform(eq_default=False)
class LaggardError(Exception):
    """Base of every error that laggard raises on purpose.

    An error is declared like a record: its annotated fields are the constructor's parameters and the error's
    attributes, and ``template`` is the message, in which fields and properties stand in braces.
    Every error can be pickled, since errors cross process boundaries.
    """

    template: ClassVar[str] = ""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        dataclass(eq=False, repr=False)(cls)

    def __post_init__(self) -> None:
        self.args = tuple(vars(self).values())  # what a pickle makes a copy of

    def __str__(self) -> str:
        return self.template.format_map(_Attributes(self)).rstrip()


class _Attributes:
    """An error's attributes, by name, as a template takes them."""

    def __init__(self, error: LaggardError) -> None:
        self._error = error

    def __getitem__(self, name: str) -> object:
        return getattr(self._error, name)
