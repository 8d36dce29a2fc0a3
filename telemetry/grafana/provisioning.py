"""Provisioning for Grafana: the data source with a job's address and token, and the dashboards."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.resources import as_file, files
from pathlib import Path

import yaml

from laggard.kvstore.client.connection import write_private
from laggard.telemetry.grafana.fitting import JobShape, fitted
from laggard.telemetry.grafana.server_client import TOKEN_HEADER

DASHBOARDS = ("overview.json", "device.json", "verdicts.json")
_PACKAGE = "laggard.telemetry"
_FOLDER = "grafana"


def write_grafana(directory: Path, url: str, token: str = "", shape: JobShape | None = None) -> Sequence[Path]:
    """Write what Grafana needs to show a job: start it with ``GF_PATHS_PROVISIONING=<directory>/provisioning``."""
    directory = directory.absolute()
    boards, provisioning = directory / "dashboards", directory / "provisioning"
    for folder in (boards, provisioning / "datasources", provisioning / "dashboards"):
        folder.mkdir(parents=True, exist_ok=True)
    with as_file(files(_PACKAGE) / _FOLDER) as source:
        for name in DASHBOARDS:
            dashboard = json.loads((source / name).read_text(encoding="utf-8"))
            shown = dashboard if shape is None else fitted(dashboard, shape)
            (boards / name).write_text(json.dumps(shown, indent=2) + "\n", encoding="utf-8")
        data_source = yaml.safe_load((source / "custom.yaml").read_text(encoding="utf-8"))
    (laggard,) = data_source["datasources"]
    laggard["url"] = url
    if token:
        laggard["jsonData"]["httpHeaderName1"] = TOKEN_HEADER
        laggard["secureJsonData"] = {"httpHeaderValue1": token}
    sources = provisioning / "datasources" / "laggard.yaml"
    write_private(sources, yaml.safe_dump(data_source, sort_keys=False))
    provider = {"name": "laggard", "type": "file", "allowUiUpdates": True, "options": {"path": str(boards)}}
    providers = provisioning / "dashboards" / "laggard.yaml"
    providers.write_text(yaml.safe_dump({"apiVersion": 1, "providers": [provider]}, sort_keys=False), encoding="utf-8")
    return [*(boards / name for name in DASHBOARDS), sources, providers]
