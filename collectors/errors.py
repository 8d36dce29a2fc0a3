"""Everything that collectors and probes can refuse or fail at."""

from __future__ import annotations

from collections.abc import Sequence

from laggard.errors import LaggardError
from laggard.kvstore.errors import NotInJobError

OLDEST_RAY = (2, 55)
"""The oldest version of Ray that is tested; the extra ``laggard[ray]`` asks for it."""


class CollectorError(LaggardError):
    """Base of everything that this package raises on purpose."""


class DeviceError(CollectorError, RuntimeError):
    """A device does not exist or cannot be used."""


class NoDeviceError(DeviceError):
    """There is neither a GPU nor a virtual device: on this node, or ``in_job``, on any."""

    in_job: bool = False
    template = "{_missing}: --virtual-gpus=K makes K virtual devices a node"

    @property
    def _missing(self) -> str:
        return "no node of this job has a GPU" if self.in_job else "no GPU here"


class DeviceLostError(DeviceError):
    """A GPU no longer answers: its name on its node, and what the driver said."""

    gpu: str
    reason: str
    template = "gpu {gpu}: {reason}"


class ProbeUnavailableError(CollectorError, RuntimeError):
    """The device cannot run the probe: ``reason`` says what it cannot do, or lacks."""

    gpu: str
    reason: str
    template = "gpu {gpu} {reason}"


class DriverUnavailableError(CollectorError, OSError):
    """No driver describes the device ``gpu``: there is none, or it does not know it; ``reason`` is what it said."""

    gpu: str
    reason: str
    template = "the driver gives no information on gpu {gpu}: {reason}"


class NoInterfaceError(CollectorError, LookupError):
    """A node has no network interface of the ``wanted`` name; ``there`` are those that have an address."""

    wanted: str
    there: Sequence[str]
    template = "no network interface fits --link-interface={wanted}: there are {_listed}"

    @property
    def _listed(self) -> str:
        return ", ".join(self.there)


class UnknownNodeError(CollectorError, LookupError):
    """A node of the launch is not part of the Ray cluster."""

    hostname: str
    address: str
    template = "Ray has no node {hostname} at {address}"


class RayMissingError(CollectorError, ImportError):
    """Ray is not installed, or it is older than :data:`OLDEST_RAY`."""

    installed: str | None = None  # the version of Ray that is installed, or None
    alternative: str = ""  # what the user can do without Ray, or an empty string
    template = "{_found}: pip install 'laggard[ray]'{_other}"

    @property
    def _found(self) -> str:
        oldest = ".".join(map(str, OLDEST_RAY))
        too_old = f"Ray {self.installed} is too old, the oldest that works is {oldest}"
        return "Ray is not installed" if self.installed is None else too_old

    @property
    def _other(self) -> str:
        return self.alternative and f", or {self.alternative}"


class CupyMissingError(CollectorError, ImportError):
    """CuPy, by which GPUs are probed, cannot be imported; ``reason`` has Python's own words."""

    reason: str
    template = "GPUs are probed with CuPy ({reason}): pip install 'laggard[cuda12]', or [cuda13], or [rocm]"


class NoClusterError(CollectorError, NotInJobError):
    """The job has no Ray cluster to start collectors in."""

    reason: str = "this job has no Ray: with --per-node, use --detect in place of a detector in the program"
