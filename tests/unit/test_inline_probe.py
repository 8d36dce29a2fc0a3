"""An inline probe of a program that runs without a job."""

from __future__ import annotations

from pathlib import Path

import pytest

from laggard.collectors import InlineProbe
from laggard.collectors.device import VirtualDevice
from laggard.detectors import SlowGPUDetector
from laggard.kvstore.client.connection import current_session
from laggard.kvstore.client.environment import ENDPOINT_FILE


@pytest.mark.parametrize("has_device", [True, False])
def test_outside_a_job_an_inline_probe_does_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, has_device: bool
) -> None:
    monkeypatch.delenv(ENDPOINT_FILE, raising=False)
    current_session.cache_clear()
    inline = InlineProbe(SlowGPUDetector(), VirtualDevice("0", tmp_path) if has_device else None)
    assert not inline.probe_if_due()
    assert list(tmp_path.iterdir()) == []
