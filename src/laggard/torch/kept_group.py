"""A process group that outlives the loss of a rank: its object stays and gets other peers (PyTorch 2.14, Gloo)."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from laggard.kvstore.membership import Membership
from laggard.resilience.job import Job
from laggard.torch.rendezvous import Rendezvous

CONNECT_S = 10.0  # by then all ranks have connected, or the controller does something else
_ALONE = 1 << 40  # more than there are launches


@dataclass(frozen=True, slots=True)
class _Own:
    """What this rank has of a process group."""

    group: Any  # PyTorch's
    backend: Any  # what connects it
    store: dist.Store  # by which its ranks find each other, with keys of its own
    rank: int  # this one's number in it, also while it is alone
    size: int

    def meet(self, launch: int) -> None:
        """Connect to the group's other ranks, which do the same."""
        self.store.set(f"handle-{self.rank}", self.handle)
        handles = [self.store.get(f"handle-{each}").decode() for each in range(self.size)]
        self.reconfigure(launch, handles)

    @property
    def handle(self) -> str:
        """By which the others connect to this rank."""
        return str(self.backend.get_reconfigure_handle())

    def reconfigure(self, number: int, handles: list[str]) -> None:
        """Form the group of a number, which a process uses only once, and no two ranks alone."""
        options: Any = torch._C._distributed_c10d.ReconfigureOptions()
        options.uuid = number
        options.handles, options.timeout = handles, timedelta(seconds=CONNECT_S)
        self.backend.reconfigure(options).wait()

    def take_effect(self) -> None:
        """Have the group use the backend, if it was still the one that talks to nobody."""
        kind = dist.ProcessGroup.BackendType.GLOO
        for device in self.group._device_types:
            if self.group._get_backend(device) is not self.backend:
                self.group._register_backend(device, kind, self.backend)
                self.group._set_default_backend(kind)


class KeptGroup:
    """The default process group, and those that the program makes of its ranks: how they get other peers."""

    def __init__(self, membership: Membership, timeout: timedelta) -> None:
        self.membership = membership
        self._n_alone = 0
        self._own: list[_Own] = []  # in the order in which the program makes them, which is that of all ranks
        self._store = Rendezvous(membership.records, CONNECT_S)  # a backend does not keep it alive
        # A type that is taken cannot be given another backend later.
        kinds = dist.ProcessGroup.BackendType
        kind = kinds.CUSTOM if membership.joins else kinds.GLOO
        made = dist.Backend.register_backend
        made(
            "gloo",
            self._backend,
            extended_api=True,
            devices=dist.Backend.backend_capability["gloo"],
            _backend_type=kind,
        )
        rank, size = membership.rank, membership.size
        dist.init_process_group("gloo", store=self._store, rank=rank, world_size=size, timeout=timeout)

    def _backend(self, made: Any, _: object) -> Any:
        """Return the backend of a process group, for PyTorch."""
        options = dist.ProcessGroupGloo._Options()
        options._timeout, options.enable_reconfigure = made.timeout, True
        options._devices = [dist.ProcessGroupGloo.create_default_device()]
        backend = dist.ProcessGroupGloo(made.store, made.group_rank, made.group_size, options)
        own = _Own(made.process_group, backend, made.store, made.group_rank, made.group_size)
        self._own.append(own)
        if self.membership.joins:
            from torch._C._distributed_c10d import FakeProcessGroup

            # What a program does in its start, a new process in the place of a lost rank does alone: until it joins the
            # others, its collectives return what it has given.
            return FakeProcessGroup._create_internal(made.group_rank, made.group_size)
        self._store.set_timeout(made.timeout)  # others may take long to start
        own.meet(self.membership.launch)
        self._store.set_timeout(timedelta(seconds=CONNECT_S))
        return backend

    @property
    def handle(self) -> str:
        """By which the others connect to this rank."""
        return self._own[0].handle

    def connect(self, handles: list[str]) -> None:
        """Connect to all ranks of the launch, given their handles in the order of the ranks."""
        first, *others = self._own
        first.reconfigure(self.membership.launch, handles)
        for own in others:
            own.meet(self.membership.launch)
        for own in self._own:
            own.take_effect()

    def let_go(self) -> None:
        """Close all connections, so that ranks which wait for this one are released."""
        self._n_alone += 1  # before a planned swap it is the second time in a launch
        number = _ALONE + self.membership.rank + self.membership.size * self._n_alone
        for own in self._own:
            own.reconfigure(number, [own.handle])


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
