"""Asking a telemetry server from outside of the job, over HTTP."""

from __future__ import annotations

import ipaddress
import time
import urllib.request
from http.client import HTTPException
from typing import Any
from urllib.parse import urlsplit

import orjson

from laggard.telemetry.errors import ServerUnreachableError
from laggard.telemetry.grafana.fitting import JobShape
from laggard.telemetry.link_matrix import TRANSFER_BYTES

DEADLINE_S = 10.0
MAX_ANSWER_BYTES = 16 << 20
TOKEN_HEADER = "X-Laggard-Token"  # noqa: S105 - a header's name


def read_shape(url: str, token: str = "") -> JobShape:
    """Return what a server's job has for dashboards to show."""
    try:
        job = _ask(url, f"/page/job?start=0&end={round(time.time() * 1000)}", token)
        metrics = frozenset(_ask(url, "/api/suggest?type=metrics&max=1000000", token))
        n_reporting, n_linked, n_devices = (
            _ask(url, f"/api/search/lookup?m={metric}&limit=1", token)["totalResults"]
            for metric in ("load_average", TRANSFER_BYTES, "DeviceUtilization")
        )
        n_nodes = max(n_reporting, n_linked)
        range_s = None if job["live"] else (job["began"] / 1000, job["ended"] / 1000)
        return JobShape(metrics, max(n_nodes, n_devices), range_s, n_nodes)
    except (OSError, HTTPException, ValueError, KeyError, TypeError) as error:
        raise ServerUnreachableError(url, str(getattr(error, "reason", "") or error)) from error


def _ask(url: str, path: str, token: str) -> Any:
    headers = {TOKEN_HEADER: token} if token else {}
    request = urllib.request.Request(url.rstrip("/") + path, headers=headers)  # noqa: S310 - http, as its users check
    # A proxy cannot reach our loopback address; it would be asked for its own.
    without_proxy = [urllib.request.ProxyHandler({})] if _is_loopback(url) else []
    with urllib.request.build_opener(_NoRedirect, *without_proxy).open(request, timeout=DEADLINE_S) as answer:
        return orjson.loads(answer.read(MAX_ANSWER_BYTES))


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follows no redirect, which could carry the token elsewhere."""

    def redirect_request(self, *_: Any) -> None:
        return None


def _is_loopback(url: str) -> bool:
    name = urlsplit(url).hostname or ""
    try:
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
