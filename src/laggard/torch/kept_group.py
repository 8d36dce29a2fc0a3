"""A process group that outlives the loss of a rank: its object stays and gets other peers (PyTorch 2.14, Gloo)."""

from __future__ import annotations

import functools
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from laggard.kvstore.membership import Membership
from laggard.resilience.job import Job
from laggard.torch.rendezvous import Rendezvous

CONNECT_S = 10.0  # by then all ranks have connected, or the controller does something else
_ALONE = 1 << 40  # more than there are launches
_CPU = torch.device("cpu")


class KeptGroup:
    """The default process group, and how it gets other peers."""

    def __init__(self, membership: Membership, timeout: timedelta) -> None:
        from torch.testing._internal.distributed import fake_pg  # registers the backend

        self.membership = membership
        self._n_alone = 0
        rank, size = membership.rank, membership.size
        # What a program does in its start, a new process in the place of a lost rank does alone: until it joins the
        # others, its collectives return what it has given.
        dist.init_process_group("fake", store=fake_pg.FakeStore(), rank=rank, world_size=size)
        options = dist.ProcessGroupGloo._Options()
        options._timeout, options.enable_reconfigure = timeout, True
        options._devices = [dist.ProcessGroupGloo.create_default_device()]
        store = Rendezvous(membership.records, timeout.total_seconds())  # others may take long to start
        self._store = store  # the backend does not keep it alive
        self._backend: Any = dist.ProcessGroupGloo(store, rank, size, options)
        if not membership.joins:
            store.set(f"handle-{rank}", self.handle)
            self.connect([store.get(f"handle-{each}").decode() for each in range(size)])
        store.set_timeout(timedelta(seconds=CONNECT_S))

    @property
    def handle(self) -> str:
        """By which the others connect to this rank."""
        return str(self._backend.get_reconfigure_handle())

    def connect(self, handles: list[str]) -> None:
        """Connect to all ranks of the launch, given their handles in the order of the ranks."""
        self._reconfigure(self.membership.launch, handles)
        group = dist.group.WORLD
        if group._get_backend(_CPU) is not self._backend:  # it was the one that talks to nobody
            kind = dist.ProcessGroup.BackendType.GLOO
            group._register_backend(_CPU, kind, self._backend)
            group._set_default_backend(kind)

    def let_go(self) -> None:
        """Close all connections, so that ranks which wait for this one are released."""
        self._n_alone += 1  # before a planned swap it is the second time in a launch
        self._reconfigure(_ALONE + self.membership.rank + self.membership.size * self._n_alone, [self.handle])

    def _reconfigure(self, number: int, handles: list[str]) -> None:
        """Form the group of a number, which a process uses only once, and no two ranks alone."""
        options: Any = torch._C._distributed_c10d.ReconfigureOptions()
        options.uuid = number
        options.handles, options.timeout = handles, timedelta(seconds=CONNECT_S)
        self._backend.reconfigure(options).wait()


_kept: list[KeptGroup] = []


def kept_group() -> KeptGroup | None:
    """Return the kept group of this process, if it has one."""
    return _kept[0] if _kept else None


@functools.cache
def _can_reconfigure() -> bool:
    return dist.is_gloo_available() and hasattr(dist.ProcessGroupGloo._Options, "enable_reconfigure")


def init_process_group(backend: str | None = None, timeout: timedelta | None = None, **options: Any) -> None:
    """Make the default process group, one that can outlive the loss of a rank where that is possible.

    That is so for Gloo with PyTorch 2.14 or later, on numbered ranks of a job (``--per-device``), and without further
    options; everywhere else it is ``torch.distributed.init_process_group``.  The training then has to go on with
    `Resumed.steps`.

    Parameters
    ----------
    backend, timeout
        As for ``torch.distributed.init_process_group``.
    options
        Its other arguments.
    """
    membership = None
    if backend == "gloo" and not options and _can_reconfigure():
        membership = Job.current().membership
    if membership is None or membership.size == 1:
        dist.init_process_group(backend, timeout=timeout, **options)
    else:
        _kept[:] = [KeptGroup(membership, timeout or dist.default_pg_timeout)]
