"""Prometheus' configuration for a job: what to scrape, and when to raise an alert (``rules.yml``)."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from laggard.kvstore.client.connection import write_private

TOKEN_FILE = "token"  # noqa: S105 - a file's name
RULES_FILE = "rules.yml"


def scrape_config(url: str, *, has_token: bool) -> dict[str, Any]:
    """Return a configuration that scrapes a job's server and loads the alert rules beside it."""
    address = urlsplit(url)
    port = address.port or (443 if address.scheme == "https" else 80)
    name = address.hostname or ""
    host = f"[{name}]" if ":" in name else name
    scrape: dict[str, Any] = {
        "job_name": "laggard",
        "scheme": address.scheme,
        "metrics_path": f"{address.path.rstrip('/')}/metrics",
        "static_configs": [{"targets": [f"{host}:{port}"]}],
    }
    if has_token:
        scrape["authorization"] = {"type": "Bearer", "credentials_file": TOKEN_FILE}
    return {
        "global": {"scrape_interval": "15s", "evaluation_interval": "15s"},
        "rule_files": [RULES_FILE],
        "scrape_configs": [scrape],
    }


def write_prometheus(directory: Path, url: str, token: str = "") -> Sequence[Path]:
    """Write the configuration and the rules, and the token if there is one, which only the owner can read."""
    directory = directory.absolute()
    directory.mkdir(parents=True, exist_ok=True)
    config, rules = directory / "prometheus.yml", directory / RULES_FILE
    config.write_text(yaml.safe_dump(scrape_config(url, has_token=bool(token)), sort_keys=False), encoding="utf-8")
    rules.write_bytes(files(__name__).joinpath(RULES_FILE).read_bytes())
    if not token:
        return [config, rules]
    write_private(directory / TOKEN_FILE, token)
    return [config, rules, directory / TOKEN_FILE]
