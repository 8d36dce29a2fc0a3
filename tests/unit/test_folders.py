"""The folders of a job, and those that killed jobs have left."""

from __future__ import annotations

from pathlib import Path

import pytest

from laggard.resilience.folders import RUNTIME_ROOT_VARIABLE, job_folders


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "root"
    directory.mkdir()
    monkeypatch.setenv(RUNTIME_ROOT_VARIABLE, str(directory))
    return directory


def left_behind(root: Path, name: str = "laggard-dead") -> Path:
    """A folder as a killed job leaves it."""
    for part in ("node1", "state"):
        (root / name / part).mkdir(parents=True)
    (root / name / "owner").touch()
    return root / name


def test_a_job_leaves_nothing(root: Path) -> None:
    with job_folders(None) as folders:
        (folders.runtime / "node1").mkdir()
        folders.state.mkdir()
    assert list(root.iterdir()) == []


def test_the_state_of_a_job_that_can_be_resumed_is_kept() -> None:
    with job_folders(None) as folders:
        (folders.runtime / "node1").mkdir()
        folders.state.mkdir()
        folders.keep_state = True
    assert list(folders.runtime.iterdir()) == [folders.state]


def test_the_folder_of_a_killed_job_is_removed_except_for_its_state(root: Path) -> None:
    dead = left_behind(root)
    with job_folders(None):
        assert list(dead.iterdir()) == [dead / "state"]


def test_the_folder_of_a_running_job_is_left_alone() -> None:
    with job_folders(None) as living:
        (living.runtime / "node1").mkdir()
        with job_folders(None):
            assert (living.runtime / "node1").exists()


def test_a_folder_that_was_just_created_is_left_alone(root: Path) -> None:
    (root / "laggard-new" / "node1").mkdir(parents=True)
    with job_folders(None):
        assert (root / "laggard-new" / "node1").exists()


def test_a_link_is_not_followed(root: Path, tmp_path: Path) -> None:
    elsewhere = left_behind(tmp_path, "elsewhere")
    (root / "laggard-link").symlink_to(elsewhere)
    with job_folders(None):
        assert (elsewhere / "node1").exists()


def test_a_state_directory_of_the_users_own_is_never_removed(tmp_path: Path) -> None:
    with job_folders(tmp_path / "mine") as folders:
        folders.state.mkdir()
    assert folders.state.exists()
