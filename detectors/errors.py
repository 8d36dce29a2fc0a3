"""What detectors can refuse on purpose, besides plain ``ValueError`` for arguments out of range."""

from __future__ import annotations

from laggard.errors import LaggardError


class DetectorError(LaggardError):
    """Base of everything that this package raises on purpose."""


class DeviceNameError(DetectorError, ValueError):
    """A key of readings or groups (``name``) is not the name of a device."""

    name: object
    template = "{name!r} names no device: use (host, gpu), two texts, for instance ('node1', '0')"


class StateVersionError(DetectorError, ValueError):
    """A saved analysis has a ``version`` that is not the ``supported`` one: another laggard wrote it."""

    version: object
    supported: int
    template = "state has version {version}, this program reads version {supported}"


class GroupsError(DetectorError, ValueError):
    """A file of labels (``path``) cannot be read or is not valid."""

    path: str
    reason: str
    template = "{path}: {reason}"
