"""State on a server of the site's: one controller at a time acts for a job, and nothing acknowledged is lost unsaid."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from laggard.kvstore.client.connection import Endpoint
from laggard.kvstore.errors import (
    FencedError,
    LockLostError,
    SiteServerError,
    StateHeldError,
    StateRewoundError,
    StateUnavailableError,
)
from laggard.kvstore.state.mapping import State, Transaction
from laggard.resilience.controller import site_state
from laggard.resilience.controller.records import Records
from laggard.resilience.controller.site_state import SiteState
from laggard.resilience.decision.roster import Exclusion
from laggard.system.ports import free_port
from tests.site_servers import PROGRAMS, SiteServer, await_replicas, fail_over, replica_of, site_server
from tests.waiting import wait_until

# The ssl module leaves a socket to the garbage collector if its server dies just as it is wrapped.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <ssl.SSLSocket:ResourceWarning")
LONG_S = 60.0
# Pairs of controllers, and within which time of the first the second begins; by hand 200, and 2 s.
RIVALS = int(os.environ.get("LAGGARD_TEST_RIVALS", "12"))
LATEST_S = float(os.environ.get("LAGGARD_TEST_LATEST", "0.5"))
SHORT_LEASE_S = 0.4


@pytest.fixture(params=list(PROGRAMS))
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SiteServer]:
    with site_server(request.param, tmp_path / "site") as server:
        yield server


@pytest.fixture
def clients() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def controller(server: SiteServer, clients: ExitStack, lease_s: float = LONG_S) -> tuple[SiteState, Records]:
    """Do what a controller does first."""
    keeper = clients.enter_context(SiteState(server.endpoint(), lease_s=lease_s))
    records = Records(keeper.endpoint, keeper.lock_id)
    clients.callback(records._client.close)
    records.next_launch()
    return keeper, records


def state_of(clients: ExitStack, endpoint: Endpoint, launch: int, retry_for_s: float = LONG_S) -> State:
    client = clients.enter_context(endpoint.connect())
    return State(client, endpoint, launch, retry_for_s=retry_for_s)


def vanish(keeper: SiteState) -> None:
    """Stop renewing the lock, without giving it back, as when the controller is stopped or killed."""
    with keeper.changed:
        keeper._stopping = True
        keeper.changed.notify_all()
    keeper._thread.join()


def test_a_second_controller_is_refused_while_the_first_lives_and_told_who_that_is(
    site: SiteServer, clients: ExitStack
) -> None:
    first, records = controller(site, clients)
    waits: list[str] = []
    with pytest.raises(StateHeldError, match=rf"job job at 127.0.0.1:{site.port} is run by process {os.getpid()} of"):
        SiteState(site.endpoint(), on_wait=waits.append)
    assert len(waits) == 1
    assert records.next_launch() == 1
    assert first.failure is None
    with SiteState(site.endpoint("other")):  # of another job
        pass


def test_the_next_controller_begins_at_once_when_the_lock_was_given_back(site: SiteServer, clients: ExitStack) -> None:
    first, _ = controller(site, clients)
    first.stop()
    waits: list[str] = []
    with SiteState(site.endpoint(), on_wait=waits.append):
        assert not waits


def test_what_a_controller_lost_its_lock_to_another_wants_to_write_is_refused(
    site: SiteServer, clients: ExitStack
) -> None:
    first, old = controller(site, clients, SHORT_LEASE_S)
    program = state_of(clients, first.endpoint, old.launch)
    program["n"] = 1
    vanish(first)
    second, new = controller(site, clients, SHORT_LEASE_S)
    assert new.launch == 1
    with pytest.raises(LockLostError):
        old.next_launch()
    for write in (
        lambda: old.write_exclusions([Exclusion("node2", 1.0)], {"node2"}),
        lambda: old.write_ledger([], set()),
        lambda: old.write_reserve(old.launch, 1),
        old.state_name,
        lambda: program.increment("n"),
    ):
        with pytest.raises(FencedError):
            write()
    assert not first._lock.renew()
    assert new.read_exclusions() == []
    assert state_of(clients, second.endpoint, 1)["n"] == 1


def test_a_controller_that_was_replaced_ends(site: SiteServer, clients: ExitStack) -> None:
    first, _ = controller(site, clients, SHORT_LEASE_S)
    with site.client() as client:
        client.hset("laggard:{job}:controller", "id", "another")
    wait_until(lambda: first.failure is not None)
    assert isinstance(first.failure, LockLostError)


def test_a_lock_whose_lease_is_over_is_still_its_holders_until_another_takes_it(
    site: SiteServer, clients: ExitStack
) -> None:
    first, records = controller(site, clients, SHORT_LEASE_S)
    vanish(first)
    time.sleep(2 * SHORT_LEASE_S)  # the lease is a time by the server's clock
    assert first._lock.renew()
    assert records.next_launch() == 1


class Rivals:
    """Controllers of one job, each typed at some moment; each counts in State, as its program would."""

    def __init__(self, site: SiteServer) -> None:
        self._endpoint = site.endpoint()
        self.acknowledged: list[tuple[int, int]] = []  # launch, and number
        self.ends: list[str] = []

    def act(self, offset_s: float, course: str) -> None:
        """Begin after a time; then live for longer than the lease, be stopped for so long, or be killed."""
        time.sleep(offset_s)
        try:
            with SiteState(self._endpoint, lease_s=SHORT_LEASE_S) as keeper:
                self._work(keeper, course)
            self.ends.append(course)
        except (StateHeldError, FencedError, LockLostError) as error:
            self.ends.append(type(error).__name__)

    def _work(self, keeper: SiteState, course: str) -> None:
        with ExitStack() as clients:
            records = Records(keeper.endpoint, keeper.lock_id)
            clients.callback(records._client.close)
            state = state_of(clients, keeper.endpoint, records.next_launch())
            self._count(state)
            if course != "lives":
                vanish(keeper)  # which also keeps it from giving back the lock
                clients.callback(keeper._client.close)
            if course != "is killed":
                time.sleep(2 * SHORT_LEASE_S)  # not a wait for an event: how long it lives, or is stopped
                self._count(state)
                records.write_ledger([], set())

    def _count(self, state: State) -> None:
        def count(transaction: Transaction) -> int:
            n = cast("int", transaction.get("n", 0)) + 1
            transaction["n"] = n
            transaction.append("log", [state.launch, n])
            return n

        for _ in range(5):
            self.acknowledged.append((state.launch, state.update_with(count)))


def test_never_two_controllers_write_whenever_the_second_is_typed(site: SiteServer, clients: ExitStack) -> None:
    chance, rivals = random.Random(1), Rivals(site)
    for _ in range(RIVALS):
        courses = chance.choices(("lives", "stops", "is killed"), k=2)
        offsets_s = 0.0, chance.uniform(0, LATEST_S)
        pair = [threading.Thread(target=rivals.act, args=each) for each in zip(offsets_s, courses, strict=True)]
        for each in pair:
            each.start()
        for each in pair:
            each.join(LONG_S)
            assert not each.is_alive()
    log = [tuple(entry) for entry in cast("list[list[int]]", state_of(clients, site.endpoint(), 0)["log"])]
    launches = [launch for launch, _ in log]
    assert launches == sorted(launches), "a controller wrote after the next one"
    assert [n for _, n in log] == list(range(1, len(log) + 1)), "something counts twice or is missing"
    assert sorted(rivals.acknowledged, key=lambda each: each[1]) == log
    print(f"{RIVALS} pairs, {len(log)} commits: {Counter(rivals.ends)}")
    assert len(rivals.ends) == 2 * RIVALS
    assert "StateHeldError" in rivals.ends


@pytest.fixture
def replica(site: SiteServer, tmp_path: Path) -> Iterator[SiteServer]:
    with site_server(site.name, tmp_path / "replica", replica_of(site)) as server:
        await_replicas(site, 1)
        yield server


def test_what_was_acknowledged_with_a_replica_is_there_after_a_failover(
    site: SiteServer, replica: SiteServer, clients: ExitStack
) -> None:
    with SiteState(site.endpoint(replicas=1), lease_s=LONG_S) as keeper:
        records = Records(keeper.endpoint, keeper.lock_id)
        clients.callback(records._client.close)
        state = state_of(clients, keeper.endpoint, records.next_launch())
        acknowledged = 0

        def count() -> None:
            nonlocal acknowledged
            while acknowledged < 60:
                state.increment("n")
                acknowledged += 1

        program = threading.Thread(target=count)
        program.start()
        wait_until(lambda: acknowledged >= 20)
        fail_over(site, replica)
        before = acknowledged
        with site_server(site.name, site.folder.with_name("next"), replica_of(replica)):
            program.join(LONG_S)
            assert not program.is_alive(), before
            assert state["n"] == 60  # each once, those too whose answer was lost
            assert records.next_launch() == 1
            assert keeper.failure is None


def test_a_commit_counts_only_once_enough_replicas_have_it(
    site: SiteServer, replica: SiteServer, clients: ExitStack
) -> None:
    with SiteState(site.endpoint(replicas=1), lease_s=LONG_S) as keeper:
        records = Records(keeper.endpoint, keeper.lock_id)
        clients.callback(records._client.close)
        launch = records.next_launch()
        state = state_of(clients, keeper.endpoint, launch, retry_for_s=3)
        state["n"] = 1
        replica.kill()
        with pytest.raises(StateUnavailableError, match="0 replicas have it, where 1 must"):
            state["n"] = 2
        with pytest.raises(SiteServerError, match="it has 0 replicas, where --state-replicas asks for 1"):
            SiteState(site.endpoint("other", replicas=1))
        replica.start()
        state["n"] = 3


def test_a_commit_that_is_sent_again_waits_for_replicas_on_a_new_connection_too(
    site: SiteServer, replica: SiteServer, clients: ExitStack
) -> None:
    """There the server has seen no write that it could wait for."""
    with SiteState(site.endpoint(replicas=1), lease_s=LONG_S) as keeper:
        records = Records(keeper.endpoint, keeper.lock_id)
        clients.callback(records._client.close)
        client = clients.enter_context(keeper.endpoint.connect())
        state = State(client, keeper.endpoint, records.next_launch(), retry_for_s=5)
        layout: Any = state._layout
        script, attempts = layout._commit_script, []

        def on_a_new_connection(**arguments: Any) -> Any:
            client.connection_pool.disconnect()
            attempts.append(arguments)
            return script(**arguments)

        layout._commit_script = on_a_new_connection
        assert replica.process is not None
        replica.process.send_signal(signal.SIGSTOP)
        with pytest.raises(StateUnavailableError, match="0 replicas have it, where 1 must"):
            state["n"] = 2
        assert len(attempts) > 1
        replica.process.send_signal(signal.SIGCONT)


def test_a_program_whose_acknowledged_commits_a_failover_has_lost_is_told_at_its_next_commit(
    site: SiteServer, replica: SiteServer, clients: ExitStack
) -> None:
    keeper, records = controller(site, clients)
    state = state_of(clients, keeper.endpoint, records.launch)
    state["n"] = 1
    with replica.client() as client:
        wait_until(lambda: client.hget("laggard:{job}:state:meta", "commits") == b"1")
        client.replicaof("NO", "ONE")  # from here on it gets nothing more
    state["n"] = 2
    fail_over(site, replica)
    with pytest.raises(StateRewoundError, match="up to 1 only, where 2 were acknowledged"):
        state["n"] = 3
    launch = records.next_launch()  # the controller still has the lock
    assert launch == 1
    assert state_of(clients, keeper.endpoint, launch)["n"] == 1


def test_a_launch_number_that_a_failover_has_lost_is_never_given_again(
    site: SiteServer, replica: SiteServer, clients: ExitStack
) -> None:
    keeper, records = controller(site, clients)
    with replica.client() as client:
        wait_until(lambda: client.get("laggard:{job}:launch") == b"0")
        client.replicaof("NO", "ONE")
    lost = state_of(clients, keeper.endpoint, records.next_launch())
    fail_over(site, replica)
    assert records.next_launch() == 2
    with pytest.raises(FencedError):
        lost["n"] = 1


def test_a_primary_that_has_become_a_replica_is_left(site: SiteServer, replica: SiteServer, clients: ExitStack) -> None:
    """Its address leads to the new primary, but a connection stays with the old one until it is closed."""
    keeper, records = controller(site, clients)
    state = state_of(clients, keeper.endpoint, records.launch)
    state["n"] = 1
    address, elsewhere = site.port, replica.port
    with site.client() as old, replica.client() as new:
        wait_until(lambda: new.hget("laggard:{job}:state:meta", "commits") == b"1")
        new.replicaof("NO", "ONE")
        old.replicaof("127.0.0.1", elsewhere)
        site.move_to(free_port("127.0.0.1"))
        new.config_set(replica.port_option, address)
        state["n"] = 2
    assert state["n"] == 2


def test_what_a_replica_lacks_is_not_taken_for_a_refusal(
    site: SiteServer, replica: SiteServer, clients: ExitStack
) -> None:
    _, records = controller(site, clients)
    with replica.client() as client:
        wait_until(lambda: client.get("laggard:{job}:launch") == b"0")
    state = state_of(clients, replica.endpoint(), records.launch + 1, retry_for_s=0)
    with pytest.raises(StateUnavailableError, match="read only replica"):
        state["n"] = 1


@pytest.mark.parametrize(
    ("name", "value", "complaint"),
    [
        ("maxmemory-policy", "allkeys-lru", "it drops keys when its memory is full"),
        ("appendonly", "no", "it keeps nothing on disk"),
    ],
)
def test_a_server_that_would_lose_state_is_refused(site: SiteServer, name: str, value: str, complaint: str) -> None:
    with site.client() as client:
        client.config_set(name, value)
    with pytest.raises(SiteServerError, match=complaint):
        SiteState(site.endpoint())
    if name == "appendonly":
        SiteState(site.endpoint(), in_memory=True).stop()


def test_a_server_that_syncs_its_disk_later_is_told_of_if_the_user_may_ask(site: SiteServer) -> None:
    with site.client() as client:
        client.config_set("appendfsync", "everysec")
        with SiteState(site.endpoint()) as keeper:
            assert not keeper.messages
        client.execute_command("ACL", "SETUSER", "laggard", "+config|get")
        with SiteState(site.endpoint()) as keeper:
            assert [message.partition(":")[0] for message in keeper.messages] == [
                "commits count before they are on its disk (appendfsync everysec)"
            ]


def test_a_wrong_password_and_a_user_that_may_not_look_are_said(site: SiteServer) -> None:
    with pytest.raises(StateUnavailableError, match="username-password"):
        SiteState(replace(site.endpoint(), password="wrong"))
    with site.client() as client:
        client.execute_command("ACL", "SETUSER", "laggard", "-info")
    with pytest.raises(SiteServerError, match="allow the user INFO"):
        SiteState(site.endpoint())


def test_a_server_that_is_silent_is_told_of_once_and_so_is_its_return(
    site: SiteServer, clients: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site_state, "SILENCE_S", 0.1)
    keeper, records = controller(site, clients, SHORT_LEASE_S)
    site.kill()
    wait_until(lambda: bool(keeper.messages))
    site.start()
    wait_until(lambda: len(keeper.messages) == 2)
    assert [text.partition(" for ")[0] for text in list(keeper.messages)[:1]] == [
        f"no answer from 127.0.0.1:{site.port}"
    ]
    assert "answers again after" in keeper.messages[1]
    assert records.next_launch() == 1  # what it had acknowledged is there, the lock too
