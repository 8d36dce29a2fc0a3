"""What detectors can refuse on purpose, besides plain ``ValueError`` for arguments out of range."""

from __future__ import annotations

from laggard.errors import LaggardError

__all__ = ["DetectorError", "DeviceNameError", "GroupsError", "StateVersionError"]


class DetectorError(LaggardError):
    """Base of everything that this package raises on purpose."""


class DeviceNameError(DetectorError, ValueError):
    """A key of readings or groups is not the name of a device.

    Attributes
    ----------
    name : object
        The key.
    """

    def __init__(self, name: object) -> None:
        super().__init__(name)
        self.name = name

    def __str__(self) -> str:
        return f"{self.name!r} names no device: use (host, gpu), two texts, for instance ('node1', '0')"


class StateVersionError(DetectorError, ValueError):
    """A saved analysis was written by another version of laggard.

    Attributes
    ----------
    version : object
        The version that was found.
    supported : int
        The version that this program reads.
    """

    def __init__(self, version: object, supported: int) -> None:
        super().__init__(version, supported)
        self.version = version
        self.supported = supported

    def __str__(self) -> str:
        return f"state has version {self.version}, this program reads version {self.supported}"


class GroupsError(DetectorError, ValueError):
    """A file of labels cannot be read or is not valid.

    Attributes
    ----------
    path : str
        The file.
    reason : str
        What is wrong with it.
    """

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"
