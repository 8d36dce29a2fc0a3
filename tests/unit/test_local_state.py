"""Programs without the launcher: State in a file, a job of one node."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from laggard.kvstore.checkpoints.checkpointer import Checkpointer
from laggard.kvstore.errors import DamagedCheckpointError, FencedError, LocalStateError, OpenTransactionError
from laggard.kvstore.state.local_state import LOCAL_STATE, file_of
from laggard.kvstore.state.mapping import State
from tests.local import fresh_local_state

COUNTING = """
import os, sys
from laggard import Job, State, Telemetry
job, state = Job.current(), State.current()
assert State.current() is state
job.progress(1)
with job.phase("checkpoint"):
    state.increment("count")
Telemetry().add_data("loss", 1.0)
line = f"{job.launch} {state.launch} {job.restarted} {state['count']} {len(job.nodes)} {job.reserve}"
sys.stdout.write(line + "\\n")  # at once: several processes write into one pipe, and may not keep what they write
"""


@pytest.fixture(autouse=True)
def _file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("LAGGARD_", "RANK", "SLURM_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv(LOCAL_STATE, str(tmp_path / "state.db"))


def run(source: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != LOCAL_STATE} | variables
    return subprocess.run(
        [sys.executable, "-c", source], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def test_a_program_without_the_launcher_keeps_state_in_a_file_and_says_so_once(tmp_path: Path) -> None:
    first, second = run(COUNTING, tmp_path), run(COUNTING, tmp_path)
    assert first.stdout == "0 0 False 1 1 ()\n", first.stderr
    assert second.stdout == "1 1 True 2 1 ()\n"
    file = tmp_path / "laggard-state.db"
    assert file.stat().st_mode & 0o777 == 0o600, "its values are the user's alone"
    assert first.stderr == (
        f"not in a laggard job: State is in {file}, and this is its run 0 "
        "(delete it to start afresh; 'laggard PROGRAM' runs the program as a job)\n"
    )


@pytest.mark.parametrize(
    ("program", "name"),
    [
        ("train.py", "train.laggard-state.db"),
        ("/home/me/examples/train.py", "train.laggard-state.db"),
        ("/venv/bin/train", "train.laggard-state.db"),
        ("/home/me/trainer/__main__.py", "trainer.laggard-state.db"),
        ("-c", "laggard-state.db"),
        ("", "laggard-state.db"),
    ],
)
def test_two_programs_in_one_folder_have_a_file_each(program: str, name: str) -> None:
    assert file_of(program) == name


def test_the_ranks_of_one_run_share_its_launch_and_only_the_first_speaks(tmp_path: Path) -> None:
    """They have one parent, as under torchrun; a spawned child inherits the launch."""
    parent = f"""
import multiprocessing, os, subprocess, sys
ranks = [
    subprocess.Popen([sys.executable, "-c", {COUNTING!r}], env={{**os.environ, "RANK": str(rank)}})
    for rank in range(3)
]
sys.exit(sum(rank.wait() for rank in ranks))
"""
    done = run(parent, tmp_path)
    assert done.returncode == 0, done.stderr
    assert sorted(line.split()[:3] for line in done.stdout.splitlines()) == [["0", "0", "False"]] * 3
    assert sorted(line.split()[3] for line in done.stdout.splitlines())[-1] == "3"
    assert done.stderr.count("not in a laggard job") == 1
    children = f"{COUNTING}\nimport subprocess\nprint(subprocess.check_output([sys.executable, '-c', {COUNTING!r}]))"
    assert run(children, tmp_path).stdout.splitlines() == ["1 1 True 4 1 ()", "b'1 1 True 5 1 ()\\n'"]


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_processes_that_a_program_starts_are_one_launch_without_variables_of_a_launcher(
    method: str, tmp_path: Path
) -> None:
    """As `torch.multiprocessing.spawn` starts ranks."""
    (tmp_path / "spawning.py").write_text(
        f"import multiprocessing\ndef count():\n    exec({COUNTING!r})\n"
        "if __name__ == '__main__':\n"
        f"    started = [multiprocessing.get_context({method!r}).Process(target=count) for _ in range(3)]\n"
        "    [each.start() for each in started], [each.join() for each in started]\n    count()\n"
    )
    program = [sys.executable, "spawning.py"]
    done = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert sorted(line.split()[:4] for line in done.stdout.splitlines())[-1] == ["0", "0", "False", "4"], done.stderr
    assert {line.split()[0] for line in done.stdout.splitlines()} == {"0"}, done.stderr
    assert done.stderr.count("not in a laggard job") == 1, done.stderr


@pytest.mark.parametrize(
    ("variables", "reason"),
    [
        ({"RANK": "0", "WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8"}, "one of 16 of which 8 are here"),
        ({"SLURM_STEP_NUM_NODES": "2"}, "a Slurm step on 2 nodes"),
    ],
)
def test_a_program_on_several_machines_is_pointed_to_the_launcher(
    tmp_path: Path, variables: dict[str, str], reason: str
) -> None:
    done = run("from laggard import State; State.current()", tmp_path, **variables)
    assert done.returncode == 1
    assert reason in done.stderr.splitlines()[-1]
    assert "start the program with 'laggard PROGRAM'" in done.stderr.splitlines()[-1]


def test_a_later_run_fences_an_earlier_one() -> None:
    earlier, later = fresh_local_state("one"), fresh_local_state("two")
    later["step"] = 2
    with pytest.raises(FencedError, match="a write of launch 0 was refused because launch 1 is the current one"):
        earlier["step"] = 1
    assert earlier["step"] == 2


def test_a_checkpoint_of_a_run_is_restored_by_the_next() -> None:
    Checkpointer(fresh_local_state("one")).save(5, {"weights": [1, (2,)]})
    checkpoints = Checkpointer(fresh_local_state("two"))
    assert checkpoints.latest() == 5
    assert checkpoints.restore(5) == {"weights": [1, (2,)]}


def test_large_shards_are_files_beside_state_and_go_with_their_checkpoints(tmp_path: Path) -> None:
    folder = tmp_path / "state.db.shards"
    weights = np.arange(700_000.0)
    one = Checkpointer(fresh_local_state("one"))
    for step in (1, 2, 3):
        one.save(step, {"weights": weights + step})
        assert one.wait(step, 0)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert len(list(folder.iterdir())) == 2
    two = Checkpointer(fresh_local_state("two"))
    assert two.latest() == 3
    assert (two.restore(3)["weights"] == weights + 3).all()
    two.save(3, {"weights": weights})
    two.save(3, {"weights": weights + 1})  # replaces it
    assert (two.restore(3)["weights"] == weights + 1).all()
    assert len(list(folder.iterdir())) == 2
    newest = max(folder.iterdir(), key=lambda file: file.stat().st_mtime_ns)
    newest.write_bytes(newest.read_bytes()[:-10_000])
    with pytest.raises(DamagedCheckpointError, match="step 3 is damaged"):
        two.restore(3)


def test_what_is_no_file_of_state_is_named_with_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "state.db").write_text("something else\n" * 100)
    with pytest.raises(LocalStateError, match=r"state.db \(file is not a database\); name another file with LAGGARD_"):
        fresh_local_state()


def test_a_write_beside_an_open_transaction_is_refused_and_says_what_to_do() -> None:
    state = fresh_local_state()
    state["step"] = 1
    writes: dict[str, Callable[[], object]] = {
        r"state\['step'\] = ... inside": lambda: state.__setitem__("step", 2),
        "state.increment": lambda: state.increment("step"),
        "state.append": lambda: state.append("list", 2),
        "state.update": lambda: state.update(step=2),
        "state.discard": lambda: state.discard("step"),
        "state.transaction": lambda: state.pop("step"),
    }

    def write_both(write: Callable[[], object]) -> None:
        with state.transaction() as t:
            t["step"] = 3
            write()

    for operation, write in writes.items():
        with pytest.raises(OpenTransactionError, match=f"{operation}.*use t in place of state"):
            write_both(write)
        assert dict(state) == {"step": 1}
    state["step"] = 4  # the transaction is over
    assert state["step"] == 4


def test_state_says_where_it_is() -> None:
    state: State = fresh_local_state()
    assert repr(state) == f"<State of {os.environ[LOCAL_STATE]}, launch 0>"
