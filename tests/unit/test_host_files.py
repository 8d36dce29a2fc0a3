"""Hosts as people and resource managers list them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from laggard.resilience.allocation.host_files import Host, hosts_of_lsf, hosts_of_pbs, named_hosts, parse_hosts
from laggard.resilience.errors import UsageError


def names(*lines: str) -> list[str]:
    return [host.name for host in parse_hosts(lines, "hosts")]


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("node1", [Host("node1")]),
        ("node1 slots=8", [Host("node1")]),
        ("node1  slots = 8 max-slots=16 ", [Host("node1")]),
        ("node1:8", [Host("node1")]),
        ("node1:8 binding=user:0,1 ifhn=node1-ib", [Host("node1")]),
        ("node1 8", [Host("node1")]),
        ("node1 8 all.q@node1 UNDEFINED", [Host("node1")]),
        ("ada@node1", [Host("node1", "ada")]),
        ("ada@node1:2222 slots=8", [Host("node1", "ada", 2222)]),
        ("ssh://node1:2222", [Host("node1", None, 2222)]),
        ("ssh://ada@10.0.0.1:22/", [Host("10.0.0.1", "ada", 22)]),
        ("SITE\\ada@node1", [Host("node1", "SITE\\ada")]),
        ("node[08-10]-ib", [Host("node08-ib"), Host("node09-ib"), Host("node10-ib")]),
        ("ada@node[1,3]:2222", [Host("node1", "ada", 2222), Host("node3", "ada", 2222)]),
        ("node1, node[2, 4] slots=2", [Host("node1"), Host("node2"), Host("node4")]),
        ("node-2.site.org  # the big one", [Host("node-2.site.org")]),
        ("\tnode_1\r", [Host("node_1")]),
        ("a[1-2]b[01-02]-ib max_slots=8", [Host(f"a{a}b{b}-ib") for a in "12" for b in ("01", "02")]),
        ("node1 slots=4 username=ada", [Host("node1", "ada")]),
        ("node1:4 user=ada", [Host("node1", "ada")]),
        ("bob@node1:2222 user=ada", [Host("node1", "bob", 2222)]),
        ("2001:DB8:0::7 slots=8", [Host("2001:db8::7")]),
        ("[fd00::7]:2222,[fd00::8]", [Host("fd00::7", None, 2222), Host("fd00::8")]),
        ("ssh://ada@[fd00::7]:2222/", [Host("fd00::7", "ada", 2222)]),
    ],
)
def test_a_line_of_a_host_file_names_hosts_as_people_write_them(text: str, hosts: list[Host]) -> None:
    assert parse_hosts([text], "hosts") == tuple(hosts)


def test_a_host_that_comes_again_is_one_node_in_the_place_of_its_first_line() -> None:
    assert names("a", "a", "b", "# a comment", "", "a", "c:2", "b slots=4") == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["a", "", "b c"], "hosts, line 3: 'c' follows a host: name one host, or hosts with commas, on each line"),
        (["a slots=2 b"], "hosts, line 1: 'slots=2 b' follows a host"),
        (["a", "-oProxyCommand=reboot"], "hosts, line 2: '-oProxyCommand=reboot' is not a valid host name"),
        (["^node1"], "hosts, line 1: '^node1' is not a valid host name: use letters, digits, dots and dashes"),
        (["a@b@c"], "hosts, line 1: 'a@b@c' is not a valid host name"),
        (["a:b"], "hosts, line 1: 'a:b' is not a valid host name"),
        (["a user=-oProxyCommand=reboot"], "hosts, line 1: 'a' has no valid user"),
        (["fe80::1%eth0"], "hosts, line 1: 'fe80::1%eth0' is not an IPv6 address that other hosts can use: write it"),
        (["a:b:c::1::2 slots=8"], "hosts, line 1: 'a:b:c::1::2' is not an IPv6 address that other hosts can use"),
        (["ada@[fd00::7]:70000"], "hosts, line 1: 'ada@[fd00::7]:70000' has no valid port: use 1 to 65535"),
        (["node1:2:3"], "hosts, line 1: 'node1:2:3' is not a valid host name"),
        (["@node1"], "hosts, line 1: '@node1' has no valid user: write user@host"),
        (["ada@"], "hosts, line 1: 'ada@' is not a valid host name"),
        (["-l@node1"], "hosts, line 1: '-l@node1' has no valid user"),
        (["node1:2222"], "hosts, line 1: 'node1:2222' may end with a port or with a number of processes: write ssh://"),
        (["ada@node1:70000"], "hosts, line 1: 'ada@node1:70000' has no valid port: use 1 to 65535"),
        (["node[1-3"], "hosts, line 1: 'node[1-3' has a bracket without its counterpart"),
        (["node[3-1]"], "hosts, line 1: 'node[3-1]' has the range 3-1: give at most 100000 numbers, from low to high"),
        (["ada@node1", "bob@node1"], "hosts, line 2: host node1 was named before with another user or port"),
        ([], "no hosts are named: give --hostlist=A,B or a --hostfile with one host per line"),
        (["# nobody", ","], "no hosts are named"),
    ],
)
def test_a_wrong_line_is_named(lines: list[str], message: str) -> None:
    with pytest.raises(UsageError) as error:
        parse_hosts(lines, "hosts")
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("hostlist", "message"),
    [
        ("a,b,a", "host a is named twice: each host is one node"),
        ("node[1-3],node2", "host node2 is named twice"),
        (" , ", "no hosts are named: give --hostlist=A,B or a --hostfile with one host per line"),
        ("a,-oProxyCommand=reboot", "'-oProxyCommand=reboot' is not a valid host name"),
        ("a b", "'a b' is not a valid host name"),
    ],
)
def test_a_wrong_list_of_hosts_is_named(hostlist: str, message: str) -> None:
    with pytest.raises(UsageError) as error:
        named_hosts(hostlist, None)
    assert str(error.value).startswith(message)


def test_hosts_are_named_in_a_list_or_in_a_file_but_not_in_both(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_bytes(b"\xef\xbb\xbf# mine\r\nnode-1 slots=8\r\n\r\nada@node-2:2222\r\n")
    assert named_hosts(None, file) == (Host("node-1"), Host("node-2", "ada", 2222))
    assert named_hosts("node-1, ada@node-2", None) == (Host("node-1"), Host("node-2", "ada"))
    with pytest.raises(UsageError, match="cannot be combined: leave one out"):
        named_hosts("a", file)
    with pytest.raises(UsageError, match=r"cannot be read: .*No such file"):
        named_hosts(None, tmp_path / "missing")
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match=r"hosts cannot be read: .*codec"):
        named_hosts(None, file)


def test_pbs_and_lsf_say_which_hosts_a_job_has(tmp_path: Path) -> None:
    file = tmp_path / "7.pbs"
    file.write_text("r1n1.site.org\nr1n1.site.org\nr1n2.site.org\nr1n2.site.org\n")
    assert [host.name for host in hosts_of_pbs({"PBS_NODEFILE": str(file)})] == ["r1n1.site.org", "r1n2.site.org"]
    given = {"LSB_MCPU_HOSTS": "c1 16 c2 16", "LSB_HOSTS": " ".join(["d1"] * 2 + ["d2"])}
    assert [host.name for host in hosts_of_lsf(given)] == ["c1", "c2"]
    assert [host.name for host in hosts_of_lsf(given | {"LSB_MCPU_HOSTS": ""})] == ["d1", "d2"]
    assert [host.name for host in hosts_of_lsf(given | {"LSB_DJOB_HOSTFILE": str(file)})][1] == "r1n2.site.org"
    with pytest.raises(UsageError, match=r"PBS_NODEFILE=.*missing cannot be read"):
        hosts_of_pbs({"PBS_NODEFILE": str(tmp_path / "missing")})


def test_the_host_file_of_the_guide_is_read_as_its_table_says() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "guides" / "ssh.md").read_text()
    (block,) = re.findall(r"```text\n(.*?)```", guide, re.DOTALL)
    several = [Host(f"node{number}-ib") for number in ("05", "06", "07", "08", "12")]
    first = [Host("node1"), Host("node2"), Host("node3", "ada", 2222), Host("node4", None, 2222)]
    assert parse_hosts(block.splitlines(), "hosts") == (*first, *several)
    rows = re.findall(r"^\| (`node1.*?) \| (.*?) \|$", guide, re.MULTILINE)
    logins = {means: {parse_hosts([line], "hosts") for line in re.findall(r"`(.*?)`", forms)} for forms, means in rows}
    assert logins.pop("a user") == {(Host("node1", "ada"),)}
    assert set().union(*logins.values()) == {(Host("node1"),)}
    assert len(logins) == 2
