"""Everything that telemetry can refuse or fail at, as one tree of types.

LaggardError
└── TelemetryError
├── BadQueryError (ValueError)           the query has no meaning
│   └── QueryTooLargeError               the answer, or the work for it, exceeds a limit
├── PointError (ValueError)              what was sent is not a valid sample
├── NoAnswerError (RuntimeError)         no node answered a question in time
├── NodeError (ValueError)               a node refused a question, or could not do what it was asked to
├── SettingsError (ValueError)           the settings cannot be used
├── DumpError (ValueError)               a dump cannot be read
├── NotConnectedError (RuntimeError)     AnalysisClient was used before connect()
├── ServerUnreachableError (RuntimeError) an HTTP server did not answer as ours does
├── RequestError                         an HTTP request was refused
└── TelemetryServerError (RuntimeError)  the HTTP server cannot start
"""

from __future__ import annotations

from laggard.errors import LaggardError

__all__ = [
    "BadQueryError",
    "DumpError",
    "NoAnswerError",
    "NodeError",
    "NotConnectedError",
    "PointError",
    "QueryTooLargeError",
    "RequestError",
    "ServerUnreachableError",
    "SettingsError",
    "TelemetryError",
    "TelemetryServerError",
]


class TelemetryError(LaggardError):
    """Base of everything that this package raises on purpose."""


class BadQueryError(TelemetryError, ValueError):
    """The query has no meaning; the reason names the part."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class QueryTooLargeError(BadQueryError):
    """The answer, or the work for it, exceeds what one query may take."""


class PointError(TelemetryError, ValueError):
    """What was sent is not a valid sample."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class NoAnswerError(TelemetryError, RuntimeError):
    """No node answered a question in time.

    Attributes
    ----------
    deadline_s : float
        How long the answers were waited for.
    """

    def __init__(self, deadline_s: float) -> None:
        super().__init__(deadline_s)
        self.deadline_s = deadline_s

    def __str__(self) -> str:
        return f"no node answered within {self.deadline_s:g} s: ask for less, or raise the setting query_deadline"


class NodeError(TelemetryError, ValueError):
    """A node refused a question, or could not do what it was asked to."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class SettingsError(TelemetryError, ValueError):
    """The telemetry settings cannot be used.

    Attributes
    ----------
    source : str
        The file that they come from.
    reason : str
        What is wrong with them.
    """

    def __init__(self, source: str, reason: str) -> None:
        super().__init__(source, reason)
        self.source = source
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.source}: {self.reason}"


class DumpError(TelemetryError, ValueError):
    """A dump cannot be read.

    Attributes
    ----------
    path : str
        The file or folder.
    reason : str
        What is wrong with it.
    """

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


class NotConnectedError(TelemetryError, RuntimeError):
    """An AnalysisClient was used before it was connected."""

    def __str__(self) -> str:
        return "the AnalysisClient is not connected: call connect() first"


class RequestError(TelemetryError):
    """An HTTP request was refused; the client gets the status and the message.

    Attributes
    ----------
    status : int
        HTTP status.
    message, details : str
        As in OpenTSDB's error object.
    """

    def __init__(self, status: int, message: str, details: str = "") -> None:
        super().__init__(status, message, details)
        self.status = status
        self.message = message
        self.details = details

    def __str__(self) -> str:
        return f"{self.status}: {self.message}"


class TelemetryServerError(TelemetryError, RuntimeError):
    """The HTTP server cannot start.

    Attributes
    ----------
    host, port
        Where it was to listen.
    reason : str
        Why it cannot, and what to do.
    """

    def __init__(self, host: str, port: int, reason: str) -> None:
        super().__init__(host, port, reason)
        self.host = host
        self.port = port
        self.reason = reason

    def __str__(self) -> str:
        return f"cannot listen on {self.host} port {self.port}: {self.reason}"


class ServerUnreachableError(TelemetryError, RuntimeError):
    """A telemetry server did not answer as ours does.

    Attributes
    ----------
    url : str
        Its address.
    reason : str
        What happened instead.
    """

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(url, reason)
        self.url = url
        self.reason = reason

    def __str__(self) -> str:
        return f"no telemetry server at {self.url}: {self.reason}"
