"""Whatever a process writes, reading what it names does not fail, and blames no node of the job."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from laggard.resilience.reading.targets import MAX_TARGETS, targets_in

HOSTS = ("node1", "node2", "10.0.1.1", "db.site", "localhost", "127.0.0.1", "[::1]", "cache")
OWN = ("node1", "node2", "10.0.1.1")
WORDS = st.sampled_from(
    [
        "Traceback (most recent call last):",
        "Connection refused",
        "Name or service not known",
        "HTTPSConnectionPool(host='{host}', port={port})",
        "('{host}', {port})",
        "{host}:{port}",
        "http://{host}:{port}/a?b=c",
        "https://me:secret@{host}",
        "{host} port {port}",
        "Could not resolve host: {host}",
        "[Errno 116] Stale file handle: '/data/{port}'",
        "During handling of the above exception, another exception occurred:",
        "503 Server Error for url:",
        "http://[",
        "\n",
        "  ",
    ]
)
LINES = st.lists(
    st.builds(
        lambda words, host, port: " ".join(words).replace("{host}", host).replace("{port}", str(port)),
        st.lists(WORDS | st.text(max_size=12), max_size=5),
        st.sampled_from(HOSTS),
        st.integers(0, 10**6),
    ),
    max_size=8,
).map(lambda texts: "\n".join(texts).split("\n"))


@given(LINES)
def test_no_node_of_the_job_is_a_target_and_nothing_secret_is_kept(lines: list[str]) -> None:
    targets = targets_in(lines, OWN)
    assert len(targets) <= MAX_TARGETS
    for target in targets:
        assert target.kind in ("name", "path") or target.host.lower() not in OWN
        assert "secret" not in target.of
        assert target.kind != "url" or "?" not in target.of
        assert 0 <= target.port < 1 << 16
