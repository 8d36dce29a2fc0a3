"""The guide's programs for Weights & Biases and MLflow, with the real packages: all launches log to one run."""

from __future__ import annotations

import os
import struct
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.jobs import MAIN_JOB_DEADLINE_S, RunningJob
from tests.unit.test_guides import programs_in

# The first launch fails, the second is relaunched at the program's request, the third comes to the end.
TRAIN = """
from laggard import AnalysisClient, Job

def train(step):
    if Job.current().launch == 0 and step == 120:
        raise RuntimeError("made up for a test")
    if Job.current().launch == 1 and step == 200:
        client = AnalysisClient()
        client.connect()
        client.reboot()
        __import__("signal").pause()
    return 1 / (step + 1)
"""
STEPS = list(range(300))
# The first launch fails once every worker has its run.
WORKER = """
import torch.distributed
from laggard import Job

torch.distributed.init_process_group("gloo")
torch.distributed.barrier()
run.log({"launch": Job.current().launch})
run.finish()
torch.distributed.barrier()
if Job.current().launch == 0:
    raise RuntimeError("made up for a test")
"""
BLOCK_BYTES, HEADER_BYTES = 32768, 7
FULL, FIRST, LAST = 1, 2, 4


def offline_records(path: Path, kind: Any) -> Iterator[Any]:
    """Yield the records in a file that W&B has written offline: a log in LevelDB's format."""
    data, at, record = path.read_bytes(), HEADER_BYTES, b""
    while at + HEADER_BYTES <= len(data):
        if (left := BLOCK_BYTES - at % BLOCK_BYTES) < HEADER_BYTES:
            at += left
            continue
        length, part = struct.unpack_from("<HB", data, at + 4)
        at += HEADER_BYTES
        record = (b"" if part in (FULL, FIRST) else record) + data[at : at + length]
        at += length
        if part in (FULL, LAST):
            yield kind.FromString(record)


def test_three_launches_are_one_run_without_a_step_twice(
    start_job: Callable[..., RunningJob], monkeypatch: pytest.MonkeyPatch
) -> None:
    records = pytest.importorskip("wandb.proto.wandb_internal_pb2", reason="needs wandb")
    mlflow = pytest.importorskip("mlflow", reason="needs mlflow-skinny")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "file:mlruns")  # its databases need the whole of MLflow
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    (program,) = (each for each in programs_in("guides/programs.md") if "import mlflow" in each)
    job = start_job("--local-nodes=1", "--resilient", "--per-node", program=TRAIN + program)
    assert job.finish(MAIN_JOB_DEADLINE_S) == 0, job.everything()

    files = sorted(job.directory.glob("wandb/offline-run-*/*.wandb"))
    found = [record for path in files for record in offline_records(path, records.Record)]
    assert len(files) == 3, "one for each launch"
    assert len({record.run.run_id for record in found if record.HasField("run")}) == 1
    assert [record.history.step.num for record in found if record.HasField("history")] == STEPS
    texts = [item.value_json for each in found if each.HasField("summary") for item in each.summary.update]
    assert any("made up for a test" in text for text in texts), "why the first launch ended"

    client = mlflow.MlflowClient(f"file:{job.directory}/mlruns")
    (one,) = client.search_runs(["0"])
    assert sorted(each.step for each in client.get_metric_history(one.info.run_id, "loss")) == STEPS
    assert any("made up for a test" in text for text in one.data.tags.values()), "why the first launch ended"


def test_each_worker_of_torchrun_has_one_run_over_all_launches(
    start_job: Callable[..., RunningJob], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = pytest.importorskip("wandb.proto.wandb_internal_pb2", reason="needs wandb")
    pytest.importorskip("torch", reason="needs the extra `torch`")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    (program,) = (each for each in programs_in("guides/programs.md") if "LOCAL_RANK" in each)
    (tmp_path / "worker.py").write_text(program + WORKER)
    options = ("--local-nodes=2", "--resilient", "--per-node")
    job = start_job(*options, "torchrun", "--nproc-per-node=2", "worker.py", directory=tmp_path)
    assert job.finish(MAIN_JOB_DEADLINE_S) == 0, job.everything()

    files = sorted(job.directory.glob("wandb/offline-run-*/*.wandb"))
    ids = [
        next(record.run.run_id for record in offline_records(path, records.Record) if record.HasField("run"))
        for path in files
    ]
    assert sorted(Counter(ids).values()) == [2, 2, 2, 2], (ids, "four workers, two launches")
