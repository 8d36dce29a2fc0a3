# The package's public names: read by type checkers, and by laggard.lazy, which loads them.
from laggard.resilience.errors import AllocationError as AllocationError
from laggard.resilience.errors import ClusterError as ClusterError
from laggard.resilience.errors import LeftoversError as LeftoversError
from laggard.resilience.errors import MessageError as MessageError
from laggard.resilience.errors import NodeAddressError as NodeAddressError
from laggard.resilience.errors import NodeDownError as NodeDownError
from laggard.resilience.errors import NodeHistoryError as NodeHistoryError
from laggard.resilience.errors import NotJoinedError as NotJoinedError
from laggard.resilience.errors import ProcessesStillRunningError as ProcessesStillRunningError
from laggard.resilience.errors import ProgramError as ProgramError
from laggard.resilience.errors import ResourceManagerError as ResourceManagerError
from laggard.resilience.errors import UnreachableNodesError as UnreachableNodesError
from laggard.resilience.errors import UsageError as UsageError
from laggard.resilience.job import Job as Job
