"""Labels of ranks, devices and nodes: as the file has them, and which one counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from laggard.detectors.judging.groups import label_of, read_groups
from laggard.resilience.command.options import JobOptions
from laggard.resilience.command.run import group_file
from laggard.resilience.errors import UsageError

FILE = """
rank 0-1: stage 0
rank 2: stage 1   # a comment
node2 gpu 1: big
node3: 7
"""


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "groups.yaml"
    path.write_text(text)
    return path


def test_a_file_has_names_as_verdicts_have_them(tmp_path: Path) -> None:
    groups = read_groups(written(tmp_path, FILE))
    assert groups == {0: "stage 0", 1: "stage 0", 2: "stage 1", ("node2", "1"): "big", "node3": "7"}


@pytest.mark.parametrize(
    ("rank", "host", "gpu", "label"),
    [
        (1, "node2", "1", "stage 0"),
        (5, "node2", "1", "big"),
        (5, "node2", "0", None),
        (None, "node3", "0", "7"),
        (None, "node1", "", None),
    ],
)
def test_a_ranks_own_label_counts_before_its_devices_and_its_nodes(
    tmp_path: Path, rank: int | None, host: str, gpu: str, label: str | None
) -> None:
    assert label_of(read_groups(written(tmp_path, FILE)), rank, host, gpu) == label


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("- rank 0", "it is not a mapping of names to labels, such as 'rank 0-7: stage 0'"),
        ("rank 3-1: a", "'rank 3-1' is not a range of ranks"),
        ("rank 0-99999999999: a", "'rank 0-99999999999' is not a range of ranks"),
        ("ranks of stage 1: a", "'ranks of stage 1' names no rank, device or node"),
        ("rank 0: [a]", "the label of 'rank 0' is ['a']"),
        ("rank 0:", "the label of 'rank 0' is None"),
        ("rank 0: a\n\tb: c", "it is not valid YAML"),
    ],
)
def test_a_file_that_is_not_valid_is_refused_with_the_reason(tmp_path: Path, text: str, reason: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(UsageError) as refused:
        group_file(JobOptions(detect=("sections",), groups=path))
    assert f"--groups={path} is not valid: {reason}" in str(refused.value)


def test_the_file_is_found_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = written(tmp_path, FILE)
    assert group_file(JobOptions(detect=("slow-gpu",), groups=Path(path.name))) == path
    assert group_file(JobOptions(detect=("slow-gpu",))) is None
