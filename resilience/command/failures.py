"""What can go wrong in any sub-command, by how the command ends."""

from __future__ import annotations

from redis import RedisError

from laggard.collectors.errors import RayMissingError
from laggard.errors import LaggardError
from laggard.kvstore.errors import SiteServerError, StateDirectoryError
from laggard.logs import LogLevelError
from laggard.resilience.errors import ProgramError, UsageError
from laggard.system.ports import PortRangeError
from laggard.telemetry.errors import SettingsError

USAGE_ERRORS = (
    *(RayMissingError, UsageError, ProgramError, SettingsError),
    *(SiteServerError, StateDirectoryError, LogLevelError, PortRangeError),
)
FAILURES = (LaggardError, RedisError)
