"""Everything that collectors and probes can refuse or fail at, as one tree of types below ``LaggardError``.

    CollectorError
    ├── DeviceError (RuntimeError)
    │   ├── NoDeviceError               neither a GPU nor a virtual device where one is needed
    │   ├── DeviceLostError             a device that no longer answers
    │   └── DeviceReadError             a driver that refuses a reading
    ├── ProbeUnavailableError (RuntimeError)  a probe that a device cannot run
    ├── DriverUnavailableError (OSError)      no driver that describes the device
    ├── RayMissingError (ImportError)         Ray is not installed, or too old
    ├── CupyMissingError (ImportError)        CuPy cannot be imported
    ├── NoInterfaceError (LookupError)        no network interface with a wanted name
    └── UnknownNodeError (LookupError)        a node that is not part of the Ray cluster

    NoClusterError (NotInJobError)      the job has no Ray cluster

All of them can be pickled, since they cross process boundaries inside Ray.
"""

from __future__ import annotations

from collections.abc import Sequence

from laggard.errors import LaggardError
from laggard.kvstore.client.environment import NotInJobError

__all__ = [
    "OLDEST_RAY",
    "CollectorError",
    "CupyMissingError",
    "DeviceError",
    "DeviceLostError",
    "DeviceReadError",
    "DriverUnavailableError",
    "NoClusterError",
    "NoDeviceError",
    "NoInterfaceError",
    "ProbeUnavailableError",
    "RayMissingError",
    "UnknownNodeError",
]

OLDEST_RAY = (2, 55)
"""The oldest version of Ray that is tested; the extra ``laggard[ray]`` asks for it."""


class CollectorError(LaggardError):
    """Base of everything that this package raises on purpose."""


class DeviceError(CollectorError, RuntimeError):
    """A device does not exist or cannot be used."""


class NoDeviceError(DeviceError):
    """There is neither a GPU nor a virtual device.

    Attributes
    ----------
    in_job : bool
        Whether the whole job has none, rather than this node.
    """

    def __init__(self, *, in_job: bool = False) -> None:
        super().__init__(in_job)
        self.in_job = in_job

    def __reduce__(self) -> tuple[type[NoDeviceError], tuple[()], dict[str, bool]]:
        return type(self), (), {"in_job": self.in_job}

    def __str__(self) -> str:
        missing = "no node of this job has a GPU" if self.in_job else "no GPU here"
        return f"{missing}: --virtual-gpus=K makes K virtual devices a node"


class _GpuError(DeviceError):
    """One GPU, and what is wrong with it.

    Attributes
    ----------
    gpu : str
        The device's name on its node.
    reason : str
        What the driver said.
    """

    def __init__(self, gpu: str, reason: str) -> None:
        super().__init__(gpu, reason)
        self.gpu = gpu
        self.reason = reason

    def __str__(self) -> str:
        return f"gpu {self.gpu}: {self.reason}"


class DeviceLostError(_GpuError):
    """The device no longer answers."""


class DeviceReadError(_GpuError):
    """The driver refused a reading of the device."""


class ProbeUnavailableError(CollectorError, RuntimeError):
    """The device cannot run the probe: it is short of memory, or has no such part.

    Attributes
    ----------
    gpu : str
        The device's name on its node.
    reason : str
        What it cannot do, or lacks.
    """

    def __init__(self, gpu: str, reason: str) -> None:
        super().__init__(gpu, reason)
        self.gpu = gpu
        self.reason = reason

    def __str__(self) -> str:
        return f"gpu {self.gpu} {self.reason}"


class DriverUnavailableError(CollectorError, OSError):
    """No driver describes the device: there is none, or it does not know the device.

    Attributes
    ----------
    gpu : str
        The device, as the driver was asked for it.
    reason : str
        What the driver said.
    """

    def __init__(self, gpu: str, reason: str) -> None:
        super().__init__(gpu, reason)
        self.gpu = gpu
        self.reason = reason

    def __str__(self) -> str:
        return f"the driver gives no information on gpu {self.gpu}: {self.reason}"


class NoInterfaceError(CollectorError, LookupError):
    """A node has no network interface of the name that was asked for.

    Attributes
    ----------
    wanted : str
        What was asked for.
    there : Sequence[str]
        The interfaces that have an address.
    """

    def __init__(self, wanted: str, there: Sequence[str]) -> None:
        super().__init__(wanted, there)
        self.wanted = wanted
        self.there = there

    def __str__(self) -> str:
        return f"no network interface fits --link-interface={self.wanted}: there are {', '.join(self.there)}"


class UnknownNodeError(CollectorError, LookupError):
    """A node of the launch is not part of the Ray cluster."""

    def __init__(self, hostname: str, address: str) -> None:
        super().__init__(hostname, address)
        self.hostname = hostname
        self.address = address

    def __str__(self) -> str:
        return f"Ray has no node {self.hostname} at {self.address}"


class RayMissingError(CollectorError, ImportError):
    """Ray is not installed, or it is older than :data:`OLDEST_RAY`.

    Attributes
    ----------
    installed
        The version of Ray that is installed, or None.
    alternative
        What the user can do without Ray, or an empty string.
    """

    def __init__(self, installed: str | None = None, alternative: str = "") -> None:
        super().__init__(installed, alternative)
        self.installed, self.alternative = installed, alternative

    def __str__(self) -> str:
        found = "Ray is not installed"
        if self.installed is not None:
            found = f"Ray {self.installed} is too old, the oldest that works is {'.'.join(map(str, OLDEST_RAY))}"
        alternative = self.alternative and f", or {self.alternative}"
        return f"{found}: pip install 'laggard[ray]'{alternative}"


class CupyMissingError(CollectorError, ImportError):
    """CuPy, by which GPUs are probed, cannot be imported.

    Attributes
    ----------
    reason
        Python's own words.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"GPUs are probed with CuPy ({self.reason}): pip install 'laggard[cuda12]', or [cuda13], or [rocm]"


class NoClusterError(CollectorError, NotInJobError):
    """The job has no Ray cluster to start collectors in."""

    def __init__(self) -> None:
        Exception.__init__(self)

    def __str__(self) -> str:
        return "this job has no Ray: with --per-node, use --detect in place of a detector in the program"
