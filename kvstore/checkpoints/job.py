"""What a shard server knows of its job: the records in State, the current launch, its nodes, and the other servers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import redis

from laggard.kvstore.checkpoints.complete import ShardKey, ShardRecord, is_record, may_change
from laggard.kvstore.checkpoints.settings import Registry, ServerAddress
from laggard.kvstore.client.connection import Endpoint
from laggard.kvstore.client.fence import current_launch
from laggard.kvstore.control import Control
from laggard.kvstore.errors import FencedError, KVStoreError, NoLaunchRecordError
from laggard.kvstore.state.mapping import State, Transaction

TOLD_FOR_S = 3600  # docs/checkpoints.md: a notice for all nodes comes once


@dataclass(frozen=True, slots=True)
class Situation:
    """The current launch, and the shard servers that run, by host."""

    launch: int
    servers: dict[str, ServerAddress]

    def ids(self) -> dict[str, str]:
        """Return the ids of the servers, by host."""
        return {host: each.server for host, each in self.servers.items()}


class JobView:
    """The job as the shard server of one node sees it. From any thread."""

    def __init__(self, client: redis.Redis, endpoint: Endpoint, registry: Registry, host: str, server: str) -> None:
        self._client = client  # connection to the state server
        self._endpoint = endpoint
        self.registry = registry  # the shard servers
        self.host = host  # this node, and the id of this server
        self.server = server

    def launch(self) -> int:
        """Return the current launch."""
        return current_launch(self._client, self._endpoint) or 0

    def situation(self) -> Situation:
        """Return what changes whenever copies may have been lost, or checkpoints have come to nothing."""
        return Situation(self.launch(), self.registry.read())

    def ring(self, launch: int) -> list[str]:
        """Return the hosts of a launch in their order, its reserve after them."""
        try:
            record = Control(self._client, self._endpoint, launch).read_launch()
        except NoLaunchRecordError:
            return []  # it is about to begin
        return [node.hostname for node in (*record.nodes, *record.reserve)]

    def ids(self) -> set[str]:
        """Return the ids of all shards that State has a record of."""
        state = self._state(self.launch())
        found = (state.get(key) for key in state if is_record(key))
        return {ShardRecord.of_value(value).id for value in found if value is not None}

    def record(self, key: ShardKey, launch: int) -> ShardRecord | None:
        """Return the record of a shard; None if it is gone, or can no longer become complete in this launch."""
        try:
            record = ShardRecord.of_value(self._state(launch)[key.record])
        except KeyError:
            return None
        return record if may_change(key, record, record.id, launch) else None

    def change_record(self, key: ShardKey, shard_id: str, change: Callable[[ShardRecord], ShardRecord]) -> ShardRecord:
        """Change the record of a shard, under the fence of its launch unless it is complete already."""
        launch = self.launch()

        def apply(transaction: Transaction) -> ShardRecord:
            found = transaction.get(key.record)
            record = None if found is None else ShardRecord.of_value(found)
            if record is None or not may_change(key, record, shard_id, launch):
                raise FencedError(key.checkpoint.launch, launch)
            changed = change(record)
            transaction[key.record] = changed.to_value()
            return changed

        # A copy that is made anew is no progress of this launch.
        return self._state(launch).update_with(apply, is_upkeep=key.checkpoint.launch < launch)

    def tell(self, notice: str) -> None:
        """Tell the user something, if the state server listens."""
        try:
            Control(self._client, self._endpoint, self.launch()).ask("notices", [notice])
        except (KVStoreError, redis.RedisError):
            return

    def tell_for_all(self, notice: str, about: str) -> None:
        """Tell the user something that all nodes may find out, unless one of them has done so in the last hour."""
        try:
            is_first = self._client.set(self._endpoint.key("told", about), notice, nx=True, ex=TOLD_FOR_S)
        except redis.RedisError:
            return
        if is_first:
            self.tell(notice)

    def _state(self, launch: int) -> State:
        return State(self._client, self._endpoint, launch)
