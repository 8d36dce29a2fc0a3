"""Everything that the store can refuse or fail at."""

from __future__ import annotations

from laggard.errors import LaggardError
from laggard.system.ports import host_and_port

MEMORY_ADVICE = "delete keys that are no longer needed, keep less in State, or give the primary node more memory"
"""What to do when State fills the memory."""


def _size(size_bytes: int) -> str:
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20)):
        if size_bytes >= factor:
            return f"{size_bytes / factor:.1f} {unit}"
    return f"{size_bytes} bytes"


class KVStoreError(LaggardError):
    """Base of everything that this package raises on purpose."""


class UnsupportedValueError(KVStoreError, TypeError):
    """A value that cannot be stored without a pickle; ``reason`` names its type, and what to use instead."""

    key: str  # and where it is in the key's value, such as `weights.a[1]`; in a checkpoint, without a key
    reason: str
    template = "State cannot hold the value of {key!r}: {reason}"


class NotAListError(KVStoreError, TypeError):
    """``append`` to a key whose value is not a list."""

    key: str
    template = "cannot append to {key!r}: its value is not a list; assign a list to it first"


class NotACounterError(KVStoreError, TypeError):
    """``increment`` of a key whose value is not an integer below 2**53 in magnitude, or would no longer be one."""

    key: str
    template = "cannot increment {key!r}: it is not an integer below 2**53; assign one to it"


class ConflictError(KVStoreError):
    """Another transaction changed what this one had read; nothing of this one was applied."""

    what: str
    template = "another transaction changed {what} first; nothing was applied, run the transaction again"


class LargeTransactionError(KVStoreError, ValueError):
    """A transaction with more than ``most`` keys and items; nothing of it was applied."""

    things: int
    most: int
    template = "a transaction of {things} keys and items, where at most {most} are possible: divide it"


class ClosedTransactionError(KVStoreError, RuntimeError):
    """A transaction was used after its ``with`` block."""

    template = "this transaction is over; begin another one with state.transaction()"


class OpenTransactionError(KVStoreError, RuntimeError):
    """A write (``operation``) inside the ``with`` block of a transaction, which would be a commit of its own."""

    operation: str
    template = (
        "{operation} inside 'with state.transaction() as t' would be a commit of its own, not part of the "
        "transaction; use t in place of state"
    )


class FencedError(KVStoreError):
    """A later launch has begun, so this process may no longer write and should end."""

    launch: int
    current: int | None
    template = "a write of launch {launch} was refused because {_now}; this process should end"

    @property
    def _now(self) -> str:
        return "no launch has begun" if self.current is None else f"launch {self.current} is the current one"


class StaleLaunchError(KVStoreError):
    """The launch number may only rise."""

    launch: int
    current: int
    template = "launch {launch} cannot begin after launch {current}; use {_lowest} or higher"

    @property
    def _lowest(self) -> int:
        return self.current + 1


class StateRewoundError(KVStoreError):
    """The server has lost commits that this process was told of, as a failover may: it has ``now`` of ``known``."""

    known: int
    now: int
    template = (
        "the state server has commits up to {now} only, where {known} were acknowledged: a failover has lost some; "
        "this process should end, and the next launch goes on from what is there"
    )


class CorruptValueError(KVStoreError):
    """Stored bytes are missing or do not match their checksum."""

    key: str
    reason: str
    template = "the stored value of {key!r} is damaged ({reason}); assign it again or delete it"


class NoCheckpointError(KVStoreError, LookupError):
    """There is no complete checkpoint of that step."""

    step: int
    reason: str
    template = "no checkpoint of step {step} can be restored ({reason})"


class DamagedCheckpointError(KVStoreError):
    """A checkpoint whose bytes do not match their checksums; ``before`` is the step of the complete one before it."""

    step: int
    reason: str
    before: int | None
    template = "the checkpoint of step {step} is damaged ({reason}); {_advice}"

    @property
    def _advice(self) -> str:
        return "there is none before it" if self.before is None else f"restore the one before, of step {self.before}"


class ShardMemoryError(KVStoreError):
    """A shard of a checkpoint does not fit into the memory of its node; earlier checkpoints are untouched."""

    host: str  # the node
    need_bytes: int  # size of the shard
    bound_bytes: int  # how much there may be there, and how much of that is in use
    used_bytes: int
    reason: str  # whose limit it is: `bound` (of the job's setting) or `file system`
    template = "a shard of {_need} does not fit: {host} {_limit}"

    @property
    def _need(self) -> str:
        return _size(self.need_bytes)

    @property
    def _limit(self) -> str:
        bound, used = _size(self.bound_bytes), _size(self.used_bytes)
        if self.reason == "bound":
            limit = f"may hold {bound} of checkpoints in memory, and {used} are in use"
            return f"{limit}; raise --checkpoint-memory, or keep fewer checkpoints"
        limit = f"has no more room in /dev/shm, where checkpoints use {used}"
        return f"{limit}; make /dev/shm larger, or keep fewer checkpoints"


class ShardServerError(KVStoreError):
    """The shard server of the node ``host`` does not answer; ``reason`` is what was seen of it."""

    host: str
    reason: str
    template = "the shard server of {host} does not answer ({reason}); its log is shards.log (--verbose)"


class LocalStateError(KVStoreError):
    """The file that holds the State of a program without a job cannot be used; ``reason`` is what SQLite says."""

    path: str
    reason: str
    template = "State cannot use {path} ({reason}); name another file with LAGGARD_LOCAL_STATE"


class StateUnavailableError(KVStoreError, ConnectionError):
    """The state server did not answer in time; a write that was under way may or may not have been applied."""

    host: str
    port: int
    reason: str
    template = "no answer from the state server at {_place} ({reason})"

    @property
    def _place(self) -> str:
        return host_and_port(self.host, self.port)


class StateFullError(KVStoreError):
    """The server at ``where`` has no room left, on disk or in memory; State is as of the last commit."""

    where: str
    reason: str
    advice: str = "free some space"
    template = "no room left for State at {where} ({reason}); State is as of the last commit: {advice}"


class NotInJobError(KVStoreError, LookupError):
    """The process was not started by laggard, or its job lacks what was asked for."""

    reason: str
    template = "{reason}"


class NoLaunchRecordError(KVStoreError, LookupError):
    """The controller has not written the record of a launch."""

    launch: int
    template = "the state server has no record of launch {launch}"


class MembershipError(KVStoreError, TimeoutError):
    """A rank that waits for a replaced one has heard nothing for too long (``waited_s`` seconds)."""

    launch: int
    waited_s: float
    template = "nobody has said within {waited_s:g} s what the ranks of launch {launch} go on from"


class UnknownRequestError(KVStoreError, ValueError):
    """The state server has a request (``text``) to the controller that none of its processes writes."""

    text: str
    template = "the state server has a request to the controller that cannot be read: {text}"


class EndpointFileError(KVStoreError):
    """The file with the server's address and password is missing, damaged or readable by others."""

    path: str
    reason: str
    template = "cannot use the endpoint file {path}: {reason}"


class SiteServerError(KVStoreError):
    """A server of the site's cannot be used; ``reason`` says why, and what to do."""

    address: str
    reason: str
    template = "cannot use the server at {address}: {reason}"


class StateHeldError(KVStoreError):
    """Another controller acts for the job; ``who`` says which."""

    job: str
    address: str
    who: str
    template = "job {job} at {address} is run by {who}: end that first, or give this one another --job-name"


class LockLostError(KVStoreError):
    """Another controller has taken over the job, or a failover has lost that this one had it."""

    job: str
    address: str
    template = "another controller may act for job {job} at {address} by now: the same command goes on if it does not"


class ServerError(KVStoreError):
    """Base of what is wrong with the embedded server."""


class ServerLostError(ServerError):
    """The embedded server could not be kept running."""

    reason: str
    template = "{reason}"


class PortTakenError(ServerError):
    """The requested port is in use by another process."""

    host: str
    port: int
    template = "port {port} on {host} is in use; name another one, or none to get a free one"


class StateDirectoryError(ServerError):
    """The state directory cannot be used."""

    path: str
    reason: str
    template = "cannot keep state in {path}: {reason}"


class DamagedLogError(ServerError):
    """The server cannot load its log in the state directory ``path``; ``words`` are the server's own."""

    path: str
    advice: str
    words: str
    template = "the log of State in {path} is damaged: {advice}\n{words}"


class ServerStartError(ServerError):
    """The server process ended or did not become ready; the message has the last lines of its log."""

    reason: str
    log_tail: str
    template = "the state server did not start: {reason}\n{log_tail}"


class MissingElementsError(KVStoreError, LookupError):
    """A checkpoint does not hold elements of an array that a rank is to have.

    Attributes
    ----------
    name
        Where the array is in the checkpoint, such as ``layers[3].weight``.
    missing
        Which elements, as boxes ``[start:stop, ...]``.
    shape
        Shape of the whole array.
    """

    name: str
    missing: tuple[str, ...]
    shape: tuple[int, ...]
    template = "no rank saved {name}{_boxes} of shape {shape}; save every part of it as a Block on some rank"

    @property
    def _boxes(self) -> str:
        return ", ".join(self.missing[:3]) + (f" and {len(self.missing) - 3} more" if len(self.missing) > 3 else "")


class ReshardingError(KVStoreError, ValueError):
    """A part of the array ``name`` cannot be put together, or was not said; ``reason`` says what to do."""

    name: str
    reason: str
    template = "{name} cannot be resharded: {reason}"
