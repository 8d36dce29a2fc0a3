"""Prometheus' configuration for a job: what to scrape, and when to raise an alert."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from laggard.kvstore.client.connection import write_private

JOB = "laggard"
TOKEN_FILE = "token"  # noqa: S105 - a file's name
RULES_FILE = "rules.yml"
# An alert about a verdict lasts this long; the device may be out of use after seconds, between two scrapes.
VERDICT_S = 600
NO_PROGRESS_S = 1800


def scrape_config(url: str, *, has_token: bool) -> dict[str, Any]:
    """Return a configuration that scrapes a job's server and loads the alert rules beside it."""
    address = urlsplit(url)
    port = address.port or (443 if address.scheme == "https" else 80)
    name = address.hostname or ""
    host = f"[{name}]" if ":" in name else name
    scrape: dict[str, Any] = {
        "job_name": JOB,
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


def alert_rules() -> dict[str, Any]:
    """Return the alert rules: device slow, node lost, no progress, server down."""
    host, gpu = "{{ $labels.hostname }}", "{{ if $labels.gpu }} gpu {{ $labels.gpu }}{{ end }}"
    since = "{{ $value | humanizeDuration }}"
    rules = [
        _rule(
            "LaggardDeviceSlow",
            f"time() - laggard_device_slow_timestamp_seconds < {VERDICT_S}",
            "warning",
            f"{host}{gpu} was found slow {since} ago",
        ),
        _rule("LaggardNodeLost", "laggard_node_up == 0", "critical", f"the telemetry of {host} does not answer", "1m"),
        _rule(
            "LaggardNoProgress",
            f"time() - laggard_progress_timestamp_seconds > {NO_PROGRESS_S}",
            "critical",
            f"no commit to State and no step for {since}",
        ),
        # Longer than a server that died takes to be started again.
        _rule("LaggardServerDown", f'up{{job="{JOB}"}} == 0', "warning", "the telemetry server does not answer", "2m"),
    ]
    return {"groups": [{"name": JOB, "rules": rules}]}


def write_prometheus(directory: Path, url: str, token: str = "") -> Sequence[Path]:
    """Write the configuration and the rules, and the token if there is one, which only the owner can read."""
    directory = directory.absolute()
    directory.mkdir(parents=True, exist_ok=True)
    contents: Mapping[str, Any] = {
        "prometheus.yml": scrape_config(url, has_token=bool(token)),
        RULES_FILE: alert_rules(),
    }
    for name, content in contents.items():
        (directory / name).write_text(yaml.safe_dump(content, sort_keys=False, width=200), encoding="utf-8")
    written = [directory / name for name in contents]
    if token:
        write_private(directory / TOKEN_FILE, token)
        written.append(directory / TOKEN_FILE)
    return written


def _rule(name: str, expression: str, severity: str, summary: str, lasting: str = "0s") -> dict[str, Any]:
    return {
        "alert": name,
        "expr": expression,
        "for": lasting,
        "labels": {"severity": severity},
        "annotations": {"summary": summary},
    }
