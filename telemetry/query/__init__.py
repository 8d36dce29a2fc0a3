"""OpenTSDB's query language on plain arrays: parsing, filters, downsampling, aggregation and rates. It does no I/O."""

from __future__ import annotations

from laggard.kvstore.series.timeseries import TimeSeries
from laggard.telemetry.errors import BadQueryError, QueryTooLargeError
from laggard.telemetry.query.engine import Answer, evaluate
from laggard.telemetry.query.parsing import Query, SubQuery, query_from_json

__all__ = [
    "Answer",
    "BadQueryError",
    "Query",
    "QueryTooLargeError",
    "SubQuery",
    "TimeSeries",
    "evaluate",
    "query_from_json",
]
