"""What may be forked from a warm process, and what it is for: tables."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest

from laggard.kvstore.control import NodeRecord
from laggard.resilience.agent import hook
from laggard.resilience.agent.imports import MAX_LISTS, MAX_QUIET_LOOKS, QUIET_LOOKS, Imports
from laggard.resilience.controller.warm_ranks import can_be_warm
from laggard.resilience.nodes.rank_variables import launch_variables, shared_variables

PYTHON = "/usr/bin/python3"
NODES = (NodeRecord("node1", "127.1.2.3", ("0", "1")), NodeRecord("node2", "127.1.2.4", ("0", "1")))


def module(name: str) -> ModuleType:
    """A module of the folder that Python runs at its start."""
    path = Path(hook.__file__).parent / "python_start" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(name, loaded)
    spec.loader.exec_module(loaded)
    return loaded


imports = module("laggard_imports")
warm = module("laggard_warm")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (f"{PYTHON} train.py --epochs 3", True),
        (f"{PYTHON} -u train.py", True),
        (f"{PYTHON} -B -uOO train.py -", True),
        (f"{PYTHON} -m train --epochs 3", True),
        (f"{PYTHON} -c pass", True),
        ("/opt/bin/python3.12 train.py", True),
        ("python train.py", True),
        (f"{PYTHON} -W ignore train.py", False),
        (f"{PYTHON} -Xdev train.py", False),
        (f"{PYTHON} --train.py", False),
        (f"{PYTHON} -I train.py", False),
        (f"{PYTHON} -E train.py", False),
        (f"{PYTHON} -uS train.py", False),
        (f"{PYTHON} -i train.py", False),
        (f"{PYTHON} -x train.py", False),
        (f"{PYTHON} -", False),
        (f"{PYTHON}", False),
        (f"{PYTHON} --version", False),
        (f"{PYTHON} project", False),
        (f"{PYTHON} project.zip", False),
        ("/bin/sh train.sh", False),
        ("/usr/bin/mpirun python train.py", False),
        ("/opt/pypy3 train.py", False),
        ("/home/user/python-wrapper train.py", False),
    ],
)
def test_only_a_python_that_runs_our_code_first_can_be_warm(words: str, expected: bool) -> None:
    assert can_be_warm(words.split()) is expected


@pytest.mark.parametrize("per_device", [True, False])
def test_what_all_copies_on_a_node_share_in_every_launch(per_device: bool) -> None:
    """What they share is in the warm process; all the rest is of one launch or rank, and so may differ."""
    launches = [
        launch_variables(NODES[:n_nodes], port, launch, {}, per_device=per_device, run="job-1")
        for n_nodes, port, launch in ((1, 4000, 0), (2, 5000, 3))
    ]
    parts = [shared_variables(rank) for nodes in launches for ranks in nodes for rank in ranks]
    shared, varying = parts[0]
    assert all(part == (shared, varying) for part in parts)
    assert shared["PYTHONUNBUFFERED"] == "1"
    assert {"LAGGARD_LAUNCH", "LAGGARD_HOSTFILE", "MASTER_PORT", "NODE_RANK", "WANDB_RUN_ID"} <= {*varying}
    assert ("OMP_NUM_THREADS" in shared) is per_device


def test_a_rank_is_at_work_once_it_imports_nothing_more(tmp_path: Path) -> None:
    path = tmp_path / "imports.txt"
    watch = Imports()
    assert watch.look() == []
    watch.watch(path)
    assert [watch.look(), watch.look()] == [[], []]  # it has not begun
    path.write_text("torch\n")
    assert [watch.look() for _ in range(QUIET_LOOKS)] == [[]] * QUIET_LOOKS
    path.write_text("torch\nnumpy\n")
    assert [watch.look() for _ in range(QUIET_LOOKS)] == [[]] * QUIET_LOOKS
    assert [watch.look() for _ in range(5)] == [["torch", "numpy"], [], [], [], []]


def test_of_a_rank_that_is_known_to_be_at_work_the_list_is_taken_at_once(tmp_path: Path) -> None:
    path = tmp_path / "imports.txt"
    path.write_text("torch\n")
    watch = Imports()
    watch.watch(path)
    assert watch.look(is_at_work=True) == ["torch"]
    path.write_text("torch\nnumpy\n")
    assert watch.look() == []
    assert watch.look(is_at_work=True) == ["torch", "numpy"]


def test_a_rank_that_was_long_at_importing_may_pause_longer(tmp_path: Path) -> None:
    path = tmp_path / "imports.txt"
    path.write_text("torch\n")
    watch = Imports()
    watch.watch(path)
    for number in range(20):
        assert watch.look() == []
        path.write_text(f"torch\nnumpy{number}\n")
    assert [bool(watch.look()) for _ in range(13)] == [False] * 10 + [True, False, False]


def test_a_program_that_imports_now_and_then_is_not_followed_for_ever(tmp_path: Path) -> None:
    path = tmp_path / "imports.txt"
    watch = Imports()
    watch.watch(path)
    lists = []
    for number in range(3 * MAX_LISTS):
        path.write_text("".join(f"module{each}\n" for each in range(number + 1)))
        lists += [names for _ in range(2 * MAX_QUIET_LOOKS) if (names := watch.look())]
    assert len(lists) == MAX_LISTS


def test_a_list_of_imports_has_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    path = tmp_path / "imports.txt"
    imports.record(str(path))
    for number in range(2 * imports.MAX_NAMES):
        assert importlib.util.find_spec(f"no_such_module{number}") is None
        assert importlib.util.find_spec(f"no_such_module{number}") is None
    names = path.read_text().split()
    assert names == [f"no_such_module{number}" for number in range(imports.MAX_NAMES)]


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        (None, True),
        ("built-in", True),
        ("frozen", True),
        (os.__file__, True),
        ("/opt/venv/lib/python3.12/site-packages/torch/__init__.py", True),
        ("/usr/lib/python3/dist-packages/yaml/__init__.py", True),
        ("/home/user/train/model.py", False),
        ("/home/user/site-packages.py", False),
    ],
)
def test_whose_a_module_is(file: str | None, expected: bool) -> None:
    assert imports.is_of_library(file) is expected


def test_which_modules_a_folder_has(tmp_path: Path) -> None:
    for name in ("one.py", "two.so", "three.txt", "__main__.py"):
        (tmp_path / name).touch()
    for name in ("package", "data"):
        (tmp_path / name).mkdir()
    (tmp_path / "package" / "__init__.py").touch()
    assert warm.shadowed(str(tmp_path)) == {"one", "two", "package", "__main__"}
    assert warm.shadowed(str(tmp_path / "nowhere")) == set()


def test_what_forks_cannot_share_is_named(tmp_path: Path) -> None:
    before = warm.descriptors_in_the_way([])
    reader, writer = os.pipe()
    with (tmp_path / "log").open("w"), Path("/dev/null").open():
        assert sorted(warm.descriptors_in_the_way([])) == sorted([*before, "a pipe", "a pipe"])
        assert warm.descriptors_in_the_way([reader, writer]) == before
    os.close(reader)
    os.close(writer)


def test_a_device_cannot_be_shared_by_forks() -> None:
    with Path("/dev/full").open():  # one that every user may open
        assert "/dev/full" in warm.descriptors_in_the_way([])
