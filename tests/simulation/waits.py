"""Time, threads and what threads wait for, as the simulated machine has them: ``time``, ``threading`` and ``queue``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any

from tests.simulation.processes import here, step
from tests.simulation.scheduler import Scheduler, Thread, current

__all__ = ["Executor", "Fake", "FakeQueues", "FakeThreading", "FakeTime", "current_scheduler", "current_thread"]


def current_thread() -> Thread:
    thread = current()
    assert thread is not None, "not in the simulation"
    return thread


def current_scheduler() -> Scheduler:
    return current_thread().process.scheduler


class Fake:
    """A module: in a simulated thread it has what is simulated, and in all else it is the real one."""

    def __init__(self, real: Any) -> None:
        self._real = real

    def __getattribute__(self, name: str) -> Any:
        if current() is not None and name in type(self).__dict__:
            return object.__getattribute__(self, name)
        return getattr(object.__getattribute__(self, "_real"), name)


class FakeTime(Fake):
    @staticmethod
    def monotonic() -> float:
        return current_scheduler().now_s

    @staticmethod
    def thread_time() -> float:
        return current_scheduler().now_s  # work takes no time

    @staticmethod
    def time() -> float:
        return current_scheduler().unix_s

    @staticmethod
    def sleep(seconds: float) -> None:
        step()
        scheduler = current_scheduler()
        until_s = scheduler.now_s + seconds
        while scheduler.now_s < until_s:
            scheduler.block(until_s - scheduler.now_s)


class FakeThread:
    def __init__(
        self,
        target: Callable[..., object],
        name: str = "thread",
        args: Iterable[Any] = (),
        *,
        daemon: bool = False,
    ) -> None:
        del daemon
        arguments = tuple(args)
        self.name = name
        self._process = here()
        self._thread = Thread(self._process, name, lambda: target(*arguments))

    def start(self) -> None:
        step()
        self._process.scheduler.start(self._thread)

    def is_alive(self) -> bool:
        return not self._thread.ended

    def join(self, timeout: float | None = None) -> None:
        step()
        scheduler = current_scheduler()
        until_s = None if timeout is None else scheduler.now_s + timeout
        while not self._thread.ended:
            left_s = None if until_s is None else until_s - scheduler.now_s
            if left_s is not None and left_s <= 0:
                return
            self._thread.joiners.append(current_thread())
            scheduler.block(left_s)


class FakeLock:
    def __init__(self) -> None:
        self._owner: Thread | None = None
        self._depth = 0
        self._waiting: list[Thread] = []

    def acquire(self) -> bool:
        me = current_thread()
        scheduler = me.process.scheduler
        if self._owner is not me:
            while self._owner is not None:
                self._waiting.append(me)
                scheduler.block()
            self._owner = me
        self._depth += 1
        return True

    def release(self) -> None:
        self._depth -= 1
        if self._depth == 0:
            self._owner = None
            if self._waiting:
                current_scheduler().wake(self._waiting.pop(0))

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class FakeCondition(FakeLock):
    def __init__(self) -> None:
        super().__init__()
        self._sleeping: list[Thread] = []

    def wait(self, timeout: float | None = None) -> bool:
        step()
        me = current_thread()
        depth, self._depth = self._depth, 1
        self.release()
        self._sleeping.append(me)
        try:
            woken = me.process.scheduler.block(timeout)
        finally:
            if me in self._sleeping:
                self._sleeping.remove(me)
            if not me.process.ended:
                self.acquire()
                self._depth = depth
        return woken

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        scheduler = current_scheduler()
        until_s = None if timeout is None else scheduler.now_s + timeout
        while not (result := predicate()):
            left_s = None if until_s is None else until_s - scheduler.now_s
            if left_s is not None and left_s <= 0:
                break
            self.wait(left_s)
        return result

    def notify_all(self) -> None:
        sleeping, self._sleeping = self._sleeping, []
        scheduler = current_scheduler()
        for thread in sleeping:
            scheduler.wake(thread)


class FakeEvent:
    def __init__(self) -> None:
        self._set = False
        self._waiting: list[Thread] = []

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        waiting, self._waiting = self._waiting, []
        for thread in waiting:
            thread.process.scheduler.wake(thread)

    def wait(self, timeout: float | None = None) -> bool:
        if not self._set:
            step()
            me = current_thread()
            self._waiting.append(me)
            me.process.scheduler.block(timeout)
            if me in self._waiting:
                self._waiting.remove(me)
        return self._set


class FakeThreading(Fake):
    Thread = FakeThread
    Lock = FakeLock
    RLock = FakeLock
    Condition = FakeCondition
    Event = FakeEvent


class FakeQueue:
    def __init__(self) -> None:
        self._items: list[Any] = []
        self._waiting: list[Thread] = []

    def __class_getitem__(cls, item: Any) -> type[FakeQueue]:
        return cls

    def put(self, item: Any) -> None:
        self._items.append(item)
        waiting, self._waiting = self._waiting, []
        for thread in waiting:
            thread.process.scheduler.wake(thread)

    def get(self) -> Any:
        me = current_thread()
        while not self._items:
            self._waiting.append(me)
            me.process.scheduler.block()
        return self._items.pop(0)


class Executor:
    """Runs each call in a thread of its own, as ``concurrent.futures.ThreadPoolExecutor`` does with few calls."""

    def __init__(self, *_: object) -> None:
        pass

    def submit(self, call: Callable[..., Any], *arguments: Any) -> Executor._Future:
        return self._Future(lambda: call(*arguments))

    def shutdown(self, **_: object) -> None:
        pass

    class _Future:
        def __init__(self, call: Callable[[], Any]) -> None:
            self._found: list[Any] = []
            self._thread = FakeThread(lambda: self._found.append(call()))
            self._thread.start()

        def result(self, timeout: float | None = None) -> Any:
            self._thread.join(timeout)
            if not self._found:
                raise TimeoutError
            return self._found[0]


class FakeQueues(Fake):
    SimpleQueue = FakeQueue
