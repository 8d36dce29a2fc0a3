"""One node's part of ``laggard doctor``'s check of links: ``python -m laggard.collectors.links.check``.

It reads commands from standard input and answers each with a line, all of them JSON: first the node's name
and address and the secret, then rounds to run. It ends with its input.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, TextIO

from laggard.collectors.links.prober import LinkProber


def main(commands: TextIO, answers: TextIO) -> None:
    """Carry out commands until there are no more."""
    begin = json.loads(commands.readline())
    with contextlib.closing(LinkProber(begin["host"], begin["address"], bytes.fromhex(begin["key"]))) as prober:
        _say(answers, {"links": prober.listens_at})
        for line in commands:
            _say(answers, _round(prober, json.loads(line)))


def _round(prober: LinkProber, command: Mapping[str, Any]) -> dict[str, object]:
    addresses = {host: (str(at), int(port)) for host, (at, port) in command["addresses"].items()}
    found = prober.run(command["round"], command["partners"], addresses, command["n_bytes"])
    return {"links": [asdict(each) for each in found.readings], "failures": found.failures}


def _say(answers: TextIO, what: object) -> None:
    answers.write(json.dumps(what) + "\n")
    answers.flush()


if __name__ == "__main__":
    main(sys.stdin, sys.stdout)
