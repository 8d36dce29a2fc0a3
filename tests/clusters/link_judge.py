"""A state server for nodes that probe their links: prints what their detector would send to a controller.

``python -m tests.clusters.link_judge FOLDER ADDRESS NODE=ADDRESS...``
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

from laggard.collectors.links.collector import LINK_TIME
from laggard.kvstore.client.fence import begin_launch
from laggard.kvstore.control import Control, LaunchRecord, NodeRecord
from laggard.kvstore.series.streams import Sample, Series
from laggard.kvstore.server.process import StateServer

POLL_S = 0.2

folder, address, *nodes = sys.argv[1:]
records = tuple(NodeRecord(name, at, ("0",)) for name, _, at in (node.partition("=") for node in nodes))
with StateServer.start(Path(folder) / "state", job="wires", host=address, encrypt=False) as server:
    server.endpoint.save(Path(folder) / "endpoint.json")
    client = server.endpoint.connect()
    begin_launch(client, server.endpoint, 0)
    control = Control(client, server.endpoint, 0)
    control.write_launch(LaunchRecord(0, records, (NodeRecord("spare", "10.78.0.99", ("0",)),)))
    print("ready", flush=True)
    series, reports = Series(client, server.endpoint, 0), Counter[str]()
    after, last = "0", "-"
    while True:
        answers = list(control.requests(after, POLL_S))
        found = series.read(LINK_TIME, last)
        reports.update(sample.tags["host"] for _, sample in found if isinstance(sample, Sample))
        last = found[-1][0] if found else last
        print(json.dumps(["rounds", max(reports.values(), default=0)]), flush=True)
        for number, request in answers:
            after = number
            for each in request.body:
                print(json.dumps([request.kind, each]), flush=True)
