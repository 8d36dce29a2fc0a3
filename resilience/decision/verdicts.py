"""Which verdicts are believed: any process of a job may send some, of any content. Pure."""

from __future__ import annotations

from collections.abc import Collection

from laggard.detectors.verdict import Verdict
from laggard.kvstore.control import Request


def believed(request: Request, judges: Collection[str]) -> tuple[list[Verdict], str]:
    """Return the verdicts of a request that are believed, and why one is not; empty if all are.

    Of a process on one of the nodes ``judges`` they all are, since detectors run there; of another, those on its node.
    """
    verdicts, doubt = list[Verdict](), ""
    for fields in request.body:
        try:
            verdict = Verdict.of_fields(fields)
            repr(verdict)
        except Exception as error:  # noqa: BLE001 - what cannot be put into words is no verdict
            doubt = f"a verdict of a process on {request.node or 'no node'} is not valid: {error}"
            continue
        if request.node in judges or request.node == verdict.host:
            verdicts.append(verdict)
        else:
            doubt = f"a verdict on {verdict.host} is not believed: it is of a process on {request.node or 'no node'}"
    return verdicts, doubt
