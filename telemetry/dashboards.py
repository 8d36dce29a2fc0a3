"""Grafana's provisioning: the data source with this job's address and token, and the dashboards."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from importlib.resources import as_file, files
from pathlib import Path

import yaml

from kvstore.endpoint import write_private

__all__ = ["DASHBOARDS", "write_grafana"]

DASHBOARDS = ("overview.json", "device.json", "verdicts.json")
TOKEN_HEADER = "X-Laggard-Token"  # noqa: S105 - a header's name
_PACKAGE = "telemetry"
_FOLDER = "grafana"


def write_grafana(directory: Path, url: str, token: str = "") -> Sequence[Path]:
    """Write what Grafana needs to show a job: start it with ``GF_PATHS_PROVISIONING=<directory>/provisioning``.

    Parameters
    ----------
    directory
        Made if it is not there; what laggard wrote there before is replaced.
    url
        Where Grafana reaches the telemetry server, for instance ``http://localhost:4242``.
    token
        The server's, so that notes made in Grafana are accepted; the file that holds it is for its owner only.

    Returns
    -------
    sequence of Path
        The files that were written.
    """
    directory = directory.absolute()
    boards, provisioning = directory / "dashboards", directory / "provisioning"
    for folder in (boards, provisioning / "datasources", provisioning / "dashboards"):
        folder.mkdir(parents=True, exist_ok=True)
    with as_file(files(_PACKAGE) / _FOLDER) as source:
        written = [Path(shutil.copyfile(source / name, boards / name)) for name in DASHBOARDS]
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
    return [*written, sources, providers]
