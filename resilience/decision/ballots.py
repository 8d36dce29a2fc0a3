"""Which copy of State counts, by the votes of a job's nodes. Pure.

A *term* is the time in which one controller acts for a job, and in it each change of the copy has a *version*.  A
change counts once most of the job's nodes have accepted it; a node accepts none of a term below the one that it has
promised.  Who takes over needs the promises of most nodes for a higher term: so it sees every change that counted, and
the controller before it can make none that count any more.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

__all__ = ["Ballot", "CopyRecord", "copy_name", "is_majority", "members_of", "newest", "term_of"]


@dataclass(frozen=True, slots=True)
class CopyRecord:
    """Where State is.

    Attributes
    ----------
    term, version
        When this came to be.
    job
        Id of the job.
    primary
        The node that holds State.
    members
        The nodes that vote: those with which the job first began.
    holder
        The node that has the copy; empty: none has it.
    copy
        Name of the copy's folder there.
    """

    term: int
    version: int
    job: str
    primary: str
    members: tuple[str, ...]
    holder: str = ""
    copy: str = ""

    @property
    def order(self) -> tuple[int, int]:
        """What later records have more of."""
        return self.term, self.version

    @classmethod
    def of_json(cls, found: Mapping[str, Any]) -> CopyRecord:
        """Return the record that `asdict` has turned into JSON."""
        return cls(**{**found, "members": tuple(found["members"])})


@dataclass(frozen=True, slots=True)
class Ballot:
    """What one node has promised and accepted.

    Attributes
    ----------
    promised
        The highest term that anybody was promised.
    accepted
        The last record that was accepted; None: none was.
    """

    promised: int = 0
    accepted: CopyRecord | None = None

    def promise(self, term: int) -> Ballot | None:
        """Return the ballot after a promise, None if this or a later term was promised before."""
        return replace(self, promised=term) if term > self.promised else None

    def accept(self, record: CopyRecord) -> Ballot | None:
        """Return the ballot after a record was accepted, None if a later term was promised, or it is an old one."""
        if record.term < self.promised or (self.accepted is not None and record.order < self.accepted.order):
            return None
        return Ballot(record.term, record)

    def to_json(self) -> str:
        """Return it as text."""
        return json.dumps(asdict(self))

    @classmethod
    def of_json(cls, text: str | bytes) -> Ballot:
        """Return what `to_json` was called on."""
        found = json.loads(text)
        accepted = found["accepted"]
        return cls(found["promised"], None if accepted is None else CopyRecord.of_json(accepted))


def newest(ballots: Iterable[Ballot]) -> CopyRecord | None:
    """Return the last record that any of these nodes has accepted."""
    records = [ballot.accepted for ballot in ballots if ballot.accepted is not None]
    return max(records, key=lambda record: record.order, default=None)


def members_of(record: CopyRecord | None, hosts: Iterable[str]) -> tuple[str, ...]:
    """Return who votes: those who did so far, and at the beginning all nodes of the job."""
    return tuple(hosts) if record is None else record.members


def is_majority(hosts: Iterable[str], members: Iterable[str]) -> bool:
    """Return whether these hosts are more than half of the members."""
    all_members = set(members)
    return 2 * len(all_members & set(hosts)) > len(all_members)


def copy_name(term: int, token: str) -> str:
    """Return the name of a copy that is made in a term."""
    return f"{term}.{token}"


def term_of(copy: str) -> int:
    """Return the term in which a copy was made."""
    return int(copy.partition(".")[0])
