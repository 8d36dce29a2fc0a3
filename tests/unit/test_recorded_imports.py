"""What a rank imports is recorded; asking for a missing module again and again takes no more memory."""

from __future__ import annotations

import os
import runpy
from pathlib import Path

from laggard.resilience.agent import imports

RECORDER = Path(imports.__file__).parent / "python_start" / "laggard_imports.py"


def test_a_missing_module_that_is_asked_for_again_and_again_is_one_name(tmp_path: Path) -> None:
    journal = tmp_path / "imports.txt"
    descriptor = os.open(journal, os.O_WRONLY | os.O_CREAT)
    recorder = runpy.run_path(str(RECORDER))["_Recorder"](descriptor)
    for _ in range(100):
        recorder.find_spec("no_such_library")
    os.close(descriptor)
    assert journal.read_text() == "no_such_library\n"
    assert len(recorder._loading) == 1
