"""Everything that telemetry can refuse or fail at."""

from __future__ import annotations

from laggard.errors import LaggardError


class TelemetryError(LaggardError):
    """Base of everything that this package raises on purpose."""


class BadQueryError(TelemetryError, ValueError):
    """A query, or a sample from outside, has no meaning; the reason names the part."""

    reason: str
    template = "{reason}"


class QueryTooLargeError(BadQueryError):
    """The answer, or the work for it, exceeds what one query may take."""


class NoAnswerError(TelemetryError, RuntimeError):
    """No node answered a question within ``deadline_s`` seconds."""

    deadline_s: float
    template = "no node answered within {deadline_s:g} s: ask for less, or raise the setting query_deadline"


class NodeError(TelemetryError, ValueError):
    """A node refused a question, or could not do what it was asked to."""

    reason: str
    template = "{reason}"


class SettingsError(TelemetryError, ValueError):
    """The telemetry settings cannot be used; ``source`` is the file that they come from."""

    source: str
    reason: str
    template = "{source}: {reason}"


class DumpError(TelemetryError, ValueError):
    """A dump, the file or folder ``path``, cannot be read."""

    path: str
    reason: str
    template = "{path}: {reason}"


class NotConnectedError(TelemetryError, RuntimeError):
    """An AnalysisClient was used before it was connected."""

    template = "the AnalysisClient is not connected: call connect() first"


class RequestError(TelemetryError):
    """An HTTP request was refused; the client gets OpenTSDB's error object."""

    status: int
    message: str
    template = "{status}: {message}"


class TelemetryServerError(TelemetryError, RuntimeError):
    """The HTTP server cannot listen on ``port``; ``reason`` says why, and what to do."""

    port: int
    reason: str
    template = "cannot listen on port {port}: {reason}"


class ServerUnreachableError(TelemetryError, RuntimeError):
    """A telemetry server at ``url`` did not answer as ours does; ``reason`` is what happened instead."""

    url: str
    reason: str
    template = "no telemetry server at {url}: {reason}"
