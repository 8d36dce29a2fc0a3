# The package's public names: read by type checkers, and by laggard.lazy, which loads them.
from laggard.telemetry.client import AnalysisClient as AnalysisClient
from laggard.telemetry.sending.sender import Telemetry as Telemetry
