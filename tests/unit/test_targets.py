"""What the last words of a failed process name that may not answer."""

from __future__ import annotations

import pytest

from laggard.resilience.reading.targets import Target, targets_in

OWN = ("node1", "node2", "10.0.1.1")


def port(host: str, number: int) -> Target:
    return Target("port", host, number)


def url(host: str, number: int, of: str) -> Target:
    return Target("url", host, number, of)


def name(host: str) -> Target:
    return Target("name", host)


def path(of: str) -> Target:
    return Target("path", of=of)


@pytest.mark.parametrize(
    ("line", "target"),
    [
        ("ConnectionRefusedError: [Errno 111] Connect call failed ('10.1.2.3', 5432)", port("10.1.2.3", 5432)),
        (
            "requests.exceptions.ConnectionError: HTTPSConnectionPool(host='s3.site', port=443): Max retries exceeded "
            "with url: /set/part-0?Signature=abc (Caused by NameResolutionError('Failed to resolve s3.site'))",
            url("s3.site", 443, "https://s3.site:443/set/part-0"),
        ),
        (
            "requests.exceptions.ReadTimeout: HTTPConnectionPool(host='api.site', port=8080): Read timed out.",
            url("api.site", 8080, "http://api.site:8080/"),
        ),
        (
            "aiohttp.client_exceptions.ClientConnectorDNSError: Cannot connect to host hub.site:443 ssl:default "
            "[Temporary failure in name resolution]",
            port("hub.site", 443),
        ),
        ("curl: (6) Could not resolve host: data.site", name("data.site")),
        ("curl: (7) Failed to connect to data.site port 8443 after 2 ms: Connection refused", port("data.site", 8443)),
        ("wget: unable to resolve host address \u2018files.site\u2019", name("files.site")),
        (
            "fatal: unable to access 'https://me:secret@git.site/x.git/': Could not resolve host: git.site",
            url("git.site", 443, "https://git.site:443/x.git/"),
        ),
        ("ssh: connect to host store.site port 22: No route to host", port("store.site", 22)),
        (
            'botocore.exceptions.EndpointConnectionError: Could not connect to the endpoint URL: "https://s3.site/b?x=1"',
            url("s3.site", 443, "https://s3.site:443/b"),
        ),
        (
            "redis.exceptions.ConnectionError: Error 111 connecting to cache:6379. Connection refused.",
            port("cache", 6379),
        ),
        (
            'psycopg.OperationalError: connection to server at "db.site" (10.0.0.5), port 5432 failed: timeout expired',
            port("db.site", 5432),
        ),
        (
            'psycopg2.OperationalError: could not translate host name "db.site" to address: Name or service not known',
            name("db.site"),
        ),
        (
            "pymongo.errors.ServerSelectionTimeoutError: mongo.site:27017: [Errno 111] Connection refused",
            port("mongo.site", 27017),
        ),
        ("\tdetails = 'failed to connect to all addresses; last error: ipv4:10.0.0.1:50051: Connection refused'",
         port("10.0.0.1", 50051)),
        ("DNS resolution failed for flight.site:50051: C-ares status is not ARES_SUCCESS", port("flight.site", 50051)),
        (
            "torch.distributed.DistNetworkError: The client socket has timed out after 60000ms while trying to connect "
            "to (rdzv.site, 29400).",
            port("rdzv.site", 29400),
        ),
        ("dial tcp 10.0.0.7:9092: connect: connection refused", port("10.0.0.7", 9092)),
        ("java.net.UnknownHostException: kafka.site", name("kafka.site")),
        (
            "requests.exceptions.HTTPError: 503 Server Error: Service Unavailable for url: http://api.site:81/x?key=1",
            url("api.site", 81, "http://api.site:81/x"),
        ),
        (
            "httpx.HTTPStatusError: Client error '429 Too Many Requests' for url 'https://api.site/v1'",
            url("api.site", 443, "https://api.site:443/v1"),
        ),
        ("socket.gaierror: [Errno -3] Temporary failure in name resolution", name("")),
        ("OSError: [Errno 116] Stale file handle: '/data/x'", path("/data/x")),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'set/part-0'", path("set/part-0")),
        ("ls: cannot access '/data/a': Transport endpoint is not connected", path("/data/a")),
        ("cat: /data/a: Stale file handle", path("/data/a")),
    ],
)  # fmt: skip
def test_what_libraries_and_tools_name_is_read_without_what_may_be_secret(line: str, target: Target) -> None:
    assert targets_in([line], OWN)[:1] == (target,)


@pytest.mark.parametrize(
    "line",
    [
        "KeyError: 'labels'",
        "RuntimeError: timed out at train.py:36 after timeout:30 at 12:41:07",
        "ValueError: see https://docs.site/errors for what this means",
        "mlflow.exceptions.MlflowException: it is temporarily unavailable. See https://www.mlflow.org/docs/latest/x",
        "RuntimeError: NCCL timed out: https://pytorch.org/tutorials/x.html#timeout",
        "ConnectionError: a proxy refused it, see https://github.com/huggingface/hub/issues/123",
        "PermissionError: [Errno 13] Permission denied: '/data/x'",
        "urllib.error.HTTPError: HTTP Error 503: Service Unavailable",
        "ConnectionResetError: [Errno 104] Connection reset by peer",
    ],
)
def test_nothing_is_read_into_lines_that_name_nothing(line: str) -> None:
    assert targets_in([line], OWN) == ()


@pytest.mark.parametrize(
    "line",
    [
        "The client socket has failed to connect to [node1]:29500 (errno: 111 - Connection refused).",
        "ConnectionRefusedError: [Errno 111] Connect call failed ('10.0.1.1', 5432)",
        "[c10d] The client socket has timed out while trying to connect to (localhost, 29500).",
        "redis.exceptions.ConnectionError: Error 111 connecting to localhost:4040. Connection refused.",
    ],
)
def test_a_peer_that_does_not_answer_is_no_outage(line: str) -> None:
    assert targets_in([line], OWN, own_ports=[4040]) == ()


def test_that_the_name_of_a_peer_is_not_resolved_is_a_matter_of_the_name_server() -> None:
    line = "The IPv6 network addresses of (node2, 29500) cannot be retrieved (gai error: -3)"
    assert targets_in([line], OWN) == (name("node2"),)


def test_a_service_on_the_node_itself_is_known_as_such() -> None:
    line = "redis.exceptions.ConnectionError: Error 111 connecting to localhost:6379. Connection refused."
    (target,) = targets_in([line], OWN)
    assert target.is_local
    assert not port("db.site", 1).is_local


def test_what_was_logged_before_the_last_traceback_is_no_reason() -> None:
    lines = [
        "WARNING: metrics.site:9090: connection refused, going on without",
        "Traceback (most recent call last):",
        '  File "train.py", line 3, in <module>',
        "KeyError: 'labels'",
    ]
    assert targets_in(lines, OWN) == ()


def test_the_error_that_led_to_the_last_one_counts_and_the_last_that_names_anything_most() -> None:
    lines = [
        "Traceback (most recent call last):",
        '  File "train.py", line 3, in <module>',
        "ConnectionRefusedError: [Errno 111] Connect call failed ('10.1.2.3', 5432)",
        "",
        "During handling of the above exception, another exception occurred:",
        "",
        "Traceback (most recent call last):",
        '  File "train.py", line 5, in <module>',
        "RuntimeError: no data",
    ]
    assert targets_in(lines, OWN) == (port("10.1.2.3", 5432),)
    lines[-1] = "TimeoutError: cannot connect to queue.site:5672"
    assert targets_in(lines, OWN) == (port("queue.site", 5672),)


def test_addresses_of_one_thing_stay_together() -> None:
    line = "OSError: Multiple exceptions: [Errno 111] Connect call failed ('::1', 80), [Errno 111] Connect call failed "
    assert targets_in([line + "('127.0.0.1', 80)"]) == (port("::1", 80), port("127.0.0.1", 80))


def test_a_line_of_code_is_the_last_resort() -> None:
    lines = [
        "Traceback (most recent call last):",
        '  File "train.py", line 3, in <module>',
        '    store = socket.create_connection(("db.site", 5432))',
        "ConnectionRefusedError: [Errno 111] Connection refused",
    ]
    assert targets_in(lines, OWN) == (port("db.site", 5432),)
    lines[-1] = "KeyError: 'labels'"
    assert targets_in(lines, OWN) == ()
