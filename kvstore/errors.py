"""Everything that the store can refuse or fail at, as one tree of types.

LaggardError
└── KVStoreError
├── UnsupportedValueError (TypeError)        a value that State cannot hold without a pickle
├── NotAListError (TypeError)                append to a key that holds something else
├── NotACounterError (TypeError)             increment of a key that holds something else
├── ConflictError                            another transaction committed first
├── ClosedTransactionError (RuntimeError)    a transaction was used after its with block
├── OpenTransactionError (RuntimeError)      a write beside an open transaction, not through it
├── FencedError                              a later launch has begun: end this process
├── StaleLaunchError                         a launch number that is not above the current one
├── CorruptValueError                        stored bytes that do not match their checksum
├── StateUnavailableError (ConnectionError)  no answer from the server
├── StateFullError                           no room left, on disk or in memory
├── NoCheckpointError (LookupError)          no complete checkpoint of that step
├── DamagedCheckpointError                   a checkpoint whose bytes do not match their checksums
├── ShardMemoryError                         a shard does not fit into the memory of its node
├── ShardServerError                         the shard server of this node does not answer
├── NestedSaveError                          a signal handler saves in the middle of another save
├── MissingElementsError (LookupError)       elements of an array that no rank saved
├── ReshardingError (ValueError)             a part of an array that cannot be put together, or was not said
├── NotInJobError (LookupError)              the process was not started by laggard
├── NoLaunchRecordError (LookupError)        the controller has not written the launch's record
├── UnknownRequestError (ValueError)         a request to the controller that is none of ours
├── LocalStateError                          the file of State without a job cannot be used
├── EndpointFileError                        the file with address and password cannot be used
└── ServerError                              the embedded server could not be started
├── PortTakenError
├── StateDirectoryError
├── DamagedLogError                      its log cannot be loaded; the message says how to repair it
└── ServerStartError
"""

from __future__ import annotations

from laggard.errors import LaggardError

__all__ = [
    "ClosedTransactionError",
    "ConflictError",
    "CorruptValueError",
    "DamagedCheckpointError",
    "DamagedLogError",
    "EndpointFileError",
    "FencedError",
    "KVStoreError",
    "LocalStateError",
    "MissingElementsError",
    "NestedSaveError",
    "NoCheckpointError",
    "NoLaunchRecordError",
    "NotACounterError",
    "NotAListError",
    "NotInJobError",
    "OpenTransactionError",
    "PortTakenError",
    "ReshardingError",
    "ServerError",
    "ServerStartError",
    "ShardMemoryError",
    "ShardServerError",
    "StaleLaunchError",
    "StateDirectoryError",
    "StateFullError",
    "StateUnavailableError",
    "UnknownRequestError",
    "UnsupportedValueError",
]

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
    """A value that cannot be stored without a pickle.

    Attributes
    ----------
    key : str
        The key that the value was meant for.
    reason : str
        The name of its type, and what to use instead.
    """

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(key, reason)
        self.key = key
        self.reason = reason

    def __str__(self) -> str:
        return f"State cannot hold the value of {self.key!r}: {self.reason}"


class NotAListError(KVStoreError, TypeError):
    """``append`` to a key whose value is not a list."""

    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key

    def __str__(self) -> str:
        return f"cannot append to {self.key!r}: its value is not a list; assign a list to it first"


class NotACounterError(KVStoreError, TypeError):
    """``increment`` of a key whose value is not an integer below 2**53 in magnitude, or would no longer be one."""

    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key

    def __str__(self) -> str:
        return f"cannot increment {self.key!r}: it is not an integer below 2**53; assign one to it"


class ConflictError(KVStoreError):
    """Another transaction changed what this one had read; nothing of this one was applied."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what

    def __str__(self) -> str:
        return f"another transaction changed {self.what} first; nothing was applied, run the transaction again"


class ClosedTransactionError(KVStoreError, RuntimeError):
    """A transaction was used after its ``with`` block."""

    def __str__(self) -> str:
        return "this transaction is over; begin another one with state.transaction()"


class OpenTransactionError(KVStoreError, RuntimeError):
    """A write to State inside the ``with`` block of a transaction, which would be a commit of its own.

    Attributes
    ----------
    operation : str
        The write, as in the program.
    """

    def __init__(self, operation: str) -> None:
        super().__init__(operation)
        self.operation = operation

    def __str__(self) -> str:
        return (
            f"{self.operation} inside 'with state.transaction() as t' would be a commit of its own, not part of the "
            "transaction; use t in place of state"
        )


class FencedError(KVStoreError):
    """A later launch has begun, so this process may no longer write and should end."""

    def __init__(self, launch: int, current: int | None) -> None:
        super().__init__(launch, current)
        self.launch = launch
        self.current = current

    def __str__(self) -> str:
        now = "no launch has begun" if self.current is None else f"launch {self.current} is the current one"
        return f"a write of launch {self.launch} was refused because {now}; this process should end"


class StaleLaunchError(KVStoreError):
    """The launch number may only rise."""

    def __init__(self, launch: int, current: int) -> None:
        super().__init__(launch, current)
        self.launch = launch
        self.current = current

    def __str__(self) -> str:
        return f"launch {self.launch} cannot begin after launch {self.current}; use {self.current + 1} or higher"


class CorruptValueError(KVStoreError):
    """Stored bytes are missing or do not match their checksum."""

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(key, reason)
        self.key = key
        self.reason = reason

    def __str__(self) -> str:
        return f"the stored value of {self.key!r} is damaged ({self.reason}); assign it again or delete it"


class NoCheckpointError(KVStoreError, LookupError):
    """There is no complete checkpoint of that step."""

    def __init__(self, step: int, reason: str) -> None:
        super().__init__(step, reason)
        self.step = step
        self.reason = reason

    def __str__(self) -> str:
        return f"no checkpoint of step {self.step} can be restored ({self.reason})"


class DamagedCheckpointError(KVStoreError):
    """A checkpoint whose bytes do not match their checksums.

    Attributes
    ----------
    step : int
        The damaged one.
    before : int or None
        Step of the complete checkpoint before it.
    """

    def __init__(self, step: int, reason: str, before: int | None) -> None:
        super().__init__(step, reason, before)
        self.step = step
        self.reason = reason
        self.before = before

    def __str__(self) -> str:
        advice = "there is none before it" if self.before is None else f"restore the one before, of step {self.before}"
        return f"the checkpoint of step {self.step} is damaged ({self.reason}); {advice}"


class ShardMemoryError(KVStoreError):
    """A shard of a checkpoint does not fit into the memory of its node; earlier checkpoints are untouched.

    Attributes
    ----------
    host : str
        The node.
    need_bytes : int
        Size of the shard.
    bound_bytes, used_bytes : int
        How much there may be there, and how much of that is in use.
    reason : str
        Whose limit it is: ``bound`` (of the job's setting) or ``file system``.
    """

    def __init__(self, host: str, need_bytes: int, bound_bytes: int, used_bytes: int, reason: str) -> None:
        super().__init__(host, need_bytes, bound_bytes, used_bytes, reason)
        self.host = host
        self.need_bytes = need_bytes
        self.bound_bytes = bound_bytes
        self.used_bytes = used_bytes
        self.reason = reason

    def __str__(self) -> str:
        need, bound, used = (_size(each) for each in (self.need_bytes, self.bound_bytes, self.used_bytes))
        if self.reason == "bound":
            limit = f"may hold {bound} of checkpoints in memory, and {used} are in use"
            advice = "raise --checkpoint-memory, or keep fewer checkpoints"
        else:
            limit = f"has no more room in /dev/shm, where checkpoints use {used}"
            advice = "make /dev/shm larger, or keep fewer checkpoints"
        return f"a shard of {need} does not fit: {self.host} {limit}; {advice}"


class ShardServerError(KVStoreError):
    """The shard server of this node does not answer.

    Attributes
    ----------
    host : str
        The node.
    reason : str
        What was seen of it.
    """

    def __init__(self, host: str, reason: str) -> None:
        super().__init__(host, reason)
        self.host = host
        self.reason = reason

    def __str__(self) -> str:
        return f"the shard server of {self.host} does not answer ({self.reason}); its log is shards.log (--verbose)"


class NestedSaveError(KVStoreError):
    """A signal handler saves or restores a checkpoint in the middle of another save or restore of its thread."""

    def __str__(self) -> str:
        return (
            "a signal handler saves or restores while the code that it interrupts does; set a flag in the handler, and "
            "save when the step has ended"
        )


class LocalStateError(KVStoreError):
    """The file that holds the State of a program without a job cannot be used.

    Attributes
    ----------
    path : str
        The file.
    reason : str
        What SQLite says.
    """

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        return f"State cannot use {self.path} ({self.reason}); name another file with LAGGARD_LOCAL_STATE"


class StateUnavailableError(KVStoreError, ConnectionError):
    """The state server did not answer in time; a write that was under way may or may not have been applied."""

    def __init__(self, host: str, port: int, reason: str) -> None:
        super().__init__(host, port, reason)
        self.host = host
        self.port = port
        self.reason = reason

    def __reduce__(self) -> tuple[type[StateUnavailableError], tuple[str, int, str]]:
        # As an OSError it would keep only two of its three arguments.
        return type(self), (self.host, self.port, self.reason)

    def __str__(self) -> str:
        return f"no answer from the state server at {self.host}:{self.port} ({self.reason})"


class StateFullError(KVStoreError):
    """The server has no room left, on disk or in memory; State is as of the last commit.

    Attributes
    ----------
    where : str
        The server's address or directory.
    reason : str
        What is used up.
    advice : str
        What to do.
    """

    def __init__(self, where: str, reason: str, advice: str = "free some space") -> None:
        super().__init__(where, reason, advice)
        self.where = where
        self.reason = reason
        self.advice = advice

    def __str__(self) -> str:
        return f"no room left for State at {self.where} ({self.reason}); State is as of the last commit: {self.advice}"


class NotInJobError(KVStoreError, LookupError):
    """The process was not started by laggard, or its job lacks what was asked for."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class NoLaunchRecordError(KVStoreError, LookupError):
    """The controller has not written the record of a launch."""

    def __init__(self, launch: int) -> None:
        super().__init__(launch)
        self.launch = launch

    def __str__(self) -> str:
        return f"the state server has no record of launch {self.launch}"


class UnknownRequestError(KVStoreError, ValueError):
    """The state server has a request to the controller that none of its processes writes.

    Attributes
    ----------
    text : str
        The request.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f"the state server has a request to the controller that cannot be read: {self.text}"


class EndpointFileError(KVStoreError):
    """The file with the server's address and password is missing, damaged or readable by others."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        return f"cannot use the endpoint file {self.path}: {self.reason}"


class ServerError(KVStoreError):
    """The embedded server could not be started."""


class PortTakenError(ServerError):
    """The requested port is in use by another process."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__(host, port)
        self.host = host
        self.port = port

    def __str__(self) -> str:
        return f"port {self.port} on {self.host} is in use; name another one, or none to get a free one"


class StateDirectoryError(ServerError):
    """The state directory cannot be used."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        return f"cannot keep state in {self.path}: {self.reason}"


class DamagedLogError(ServerError):
    """The server cannot load its log.

    Attributes
    ----------
    path : str
        The state directory.
    advice : str
        What to do.
    words : str
        The server's words.
    """

    def __init__(self, path: str, advice: str, words: str) -> None:
        super().__init__(path, advice, words)
        self.path = path
        self.advice = advice
        self.words = words

    def __str__(self) -> str:
        return f"the log of State in {self.path} is damaged: {self.advice}\n{self.words}".rstrip()


class ServerStartError(ServerError):
    """The server process ended or did not become ready; the message has the last lines of its log."""

    def __init__(self, reason: str, log_tail: str) -> None:
        super().__init__(reason, log_tail)
        self.reason = reason
        self.log_tail = log_tail

    def __str__(self) -> str:
        return f"the state server did not start: {self.reason}\n{self.log_tail}".rstrip()


class MissingElementsError(KVStoreError, LookupError):
    """A checkpoint does not hold elements of an array that a rank is to have.

    Attributes
    ----------
    name : str
        Path of the array in the checkpoint, with slashes.
    missing : tuple of str
        Which elements, as boxes ``[start:stop, ...]``.
    shape : tuple of int
        Shape of the whole array.
    """

    def __init__(self, name: str, missing: tuple[str, ...], shape: tuple[int, ...]) -> None:
        super().__init__(name, missing, shape)
        self.name = name
        self.missing = missing
        self.shape = shape

    def __str__(self) -> str:
        shown = ", ".join(self.missing[:3]) + (f" and {len(self.missing) - 3} more" if len(self.missing) > 3 else "")
        return f"no rank saved {self.name}{shown} of shape {self.shape}; save every part of it as a Block on some rank"


class ReshardingError(KVStoreError, ValueError):
    """A part of an array that cannot be put together, or was not said.

    Attributes
    ----------
    name : str
        Path of the array in the checkpoint, with slashes.
    reason : str
        What is wrong, and what to do.
    """

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(name, reason)
        self.name = name
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.name} cannot be resharded: {self.reason}"
