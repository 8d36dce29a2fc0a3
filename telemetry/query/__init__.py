"""OpenTSDB's query language on plain arrays: parsing, filters, downsampling, aggregation, rates. No input or output."""

from __future__ import annotations

from kvstore.timeseries import TimeSeries
from telemetry.query.engine import Answer, evaluate
from telemetry.query.errors import BadQueryError, QueryTooLargeError
from telemetry.query.parsing import Query, SubQuery, query_from_json, query_from_url

__all__ = [
    "Answer",
    "BadQueryError",
    "Query",
    "QueryTooLargeError",
    "SubQuery",
    "TimeSeries",
    "evaluate",
    "query_from_json",
    "query_from_url",
]
