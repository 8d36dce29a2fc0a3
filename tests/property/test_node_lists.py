"""Lists of nodes: reading one is the reverse of writing one, and any text is read or refused in one sentence."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laggard.node_names import folded
from laggard.resilience.allocation.host_files import Host, parse_hosts
from laggard.resilience.allocation.node_lists import expand_node_list
from laggard.resilience.errors import UsageError

plain = st.from_regex(r"[a-z][a-z-]{0,5}", fullmatch=True)
numbered = st.builds(
    lambda before, number, width, after: f"{before}{number:0{width}}{after}",
    plain,
    st.integers(0, 1200),
    st.integers(1, 5),
    st.sampled_from(["", "-ib", ".site.org"]),
)


@given(st.lists(st.one_of(plain, numbered), unique=True))
def test_what_is_folded_is_expanded_to_the_same_names(names: list[str]) -> None:
    assert sorted(expand_node_list(",".join(folded(names)))) == sorted(names)


@given(st.lists(numbered, min_size=1), st.integers(1, 3))
def test_however_often_and_with_whatever_behind_it_a_host_comes_it_is_one_node(names: list[str], times: int) -> None:
    lines = [f"{name} slots={len(name)}" for name in names for _ in range(times)]
    assert [host.name for host in parse_hosts(lines, "hosts")] == list(dict.fromkeys(names))


@given(st.text(alphabet="an0129[]-,:@ /=#."))
def test_any_line_is_read_or_refused_in_one_sentence_that_names_it(line: str) -> None:
    refusal = ""
    hosts: tuple[Host, ...] = ()
    try:
        hosts = parse_hosts([line, "end"], "hosts")
    except UsageError as error:
        refusal = str(error)
    assert "end" in [host.name for host in hosts] or re.match(r"hosts, line [12]: .", refusal)
    assert "\n" not in refusal
    assert not [host for host in hosts if host.name.startswith("-") or (host.user or "").startswith("-")]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("nid[001-003,007]-ib", ["nid001-ib", "nid002-ib", "nid003-ib", "nid007-ib"]),
        ("rack[0-1]n[08-09]", ["rack0n08", "rack0n09", "rack1n08", "rack1n09"]),
        ("r[1,3]c[0-1]s[5]b", ["r1c0s5b", "r1c1s5b", "r3c0s5b", "r3c1s5b"]),
        ("login,node[9-11],gpu01", ["login", "node9", "node10", "node11", "gpu01"]),
        ("n[1-2],n[4]", ["n1", "n2", "n4"]),
        (" a , b ", ["a", "b"]),
        ("", []),
    ],
)
def test_gaps_suffixes_and_several_bracket_groups_are_read_as_slurm_writes_them(text: str, names: list[str]) -> None:
    assert expand_node_list(text) == names


@pytest.mark.parametrize("text", ["n[1-100001]", "n[0-999][0-999]", "n[]", "n[a-b]", "n[1-]", "n]1[", "n[[1]]", "n[1"])
def test_what_is_no_list_of_nodes_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        expand_node_list(text)
