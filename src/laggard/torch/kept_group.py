"""A process group that outlives the loss of a rank: its object stays and gets other peers (PyTorch 2.14)."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from laggard.kvstore.membership import Membership
from laggard.resilience.job import Job
from laggard.torch.kept_device import Device
from laggard.torch.rendezvous import Rendezvous

CONNECT_S = 10.0  # by then all ranks have connected, or the controller does something else


@dataclass(frozen=True, slots=True)
class _Kind:
    """What the process groups of a job communicate with."""

    name: str  # PyTorch's
    type: Any  # PyTorch's number of it
    make: Callable[[Any, None], Any]  # PyTorch's own, for a backend
    has_device: bool  # which may wait for a lost rank until it is aborted


@dataclass(frozen=True, slots=True)
class _Own:
    """What this rank has of a process group."""

    group: Any  # PyTorch's; None: the program knows nothing of it
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

    def take_effect(self, kind: _Kind) -> None:
        """Have the group use the backend, if it was still the one that talks to nobody."""
        for device in self.group._device_types if self.group is not None else ():
            if self.group._get_backend(device) is not self.backend:
                self.group._register_backend(device, kind.type, self.backend)
                self.group._set_default_backend(kind.type)


class KeptGroup:
    """The default process group, and those that the program makes of its ranks: how they get other peers."""

    def __init__(self, membership: Membership, kind: _Kind, timeout: timedelta | None) -> None:
        self.membership = membership
        self._kind = kind
        # The first one connects all ranks by the host's network. The others follow in the order in which the program
        # makes them, which is that of all ranks.
        self._own: list[_Own] = []
        self._store = Rendezvous(membership.records, timedelta(seconds=CONNECT_S))  # a backend does not keep it alive
        launch = None if membership.joins else membership.launch
        self._device = Device(membership.records, self._own, launch) if kind.has_device else None
        rank, size = membership.rank, membership.size
        timeout = timeout or dist.distributed_c10d._get_default_timeout(kind.name)
        if kind.has_device:
            # As NVIDIA's own restart within a process asks for: NVLink SHARP shares memory among the ranks of a node.
            # Nothing else is set: if it can get other peers, nccl2 ends no process at an error, whatever
            # TORCH_NCCL_ASYNC_ERROR_HANDLING says, and does not read TORCH_NCCL_RETHROW_CUDA_ERRORS.
            os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
        # A type that is taken cannot be given another backend later.
        taken = dist.ProcessGroup.BackendType.CUSTOM if membership.joins else kind.type
        devices = dist.Backend.backend_capability["nccl" if kind.has_device else "gloo"]
        dist.Backend.register_backend(kind.name, self._backend, extended_api=True, devices=devices, _backend_type=taken)
        dist.init_process_group(kind.name, store=self._store, rank=rank, world_size=size, timeout=timeout)

    def _backend(self, made: Any, _: object) -> Any:
        """Return the backend of a process group, for PyTorch."""
        if self._kind.has_device and not self._own:
            self._add(None, made, dist.distributed_c10d._create_gloo_process_group)
        backend = self._add(made.process_group, made, self._kind.make)
        if not self.membership.joins:
            return backend
        from torch._C._distributed_c10d import FakeProcessGroup

        # What a program does in its start, a new process in the place of a lost rank does alone: until it joins the
        # others, its collectives return what it has given.
        return FakeProcessGroup._create_internal(made.group_rank, made.group_size)

    def _add(self, group: Any, made: Any, make: Callable[[Any, None], Any]) -> Any:
        made.store = dist.PrefixStore(make.__name__, made.store)  # two backends may have been given the same one
        made.enable_reconfigure, made.split_from = True, None
        own = _Own(group, make(made, None), made.store, made.group_rank, made.group_size)
        self._own.append(own)
        if not self.membership.joins:
            self._store.set_timeout(made.timeout)  # others may take long to start
            own.meet(self.membership.launch)
            self._store.set_timeout(timedelta(seconds=CONNECT_S))
        return own.backend

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
            own.take_effect(self._kind)
        if self._device is not None:
            self._device.connected(self.membership.launch)

    def settle(self) -> None:
        """Make sure that what was computed so far is right; raise an error if it is not."""
        if self._device is not None:
            self._device.settle()

    def rest(self) -> None:
        """Wait until all ranks are between two steps: who lets go first would end what another one's device is in."""
        if self._device is not None:
            self._own[0].backend.barrier().wait(dist.default_pg_timeout)

    def stop(self) -> None:
        """End what this rank waits for on its device, and raise an error if that does not work any more."""
        if self._device is not None:
            self._device.stop()

    def begin_to_send(self, data: bytes, to: int) -> list[Any]:
        """Send data to a rank by the host's network; return what to wait for."""
        sent = [torch.tensor([len(data)])]
        if data:
            sent.append(torch.frombuffer(bytearray(data), dtype=torch.uint8))
        return [self._own[0].backend.send([each], to, 0) for each in sent]

    def receive(self, source: int) -> memoryview:
        """Return what a rank has sent."""
        size = int(self._receive(torch.zeros(1, dtype=torch.int64), source))
        data = torch.empty(size, dtype=torch.uint8)
        return memoryview((self._receive(data, source) if size else data).numpy())

    def _receive(self, into: torch.Tensor, source: int) -> torch.Tensor:
        # By default it waits as long as connecting may take, and others may be stopped for longer.
        self._own[0].backend.recv([into], source, 0).wait(dist.default_pg_timeout)
        return into

    def let_go(self) -> None:
        """Close all connections, so that ranks which wait for this one are released."""
        for own in self._own:
            own.reconfigure(secrets.randbits(62), [own.handle])  # which nobody else has, and is no launch's


_kept: list[KeptGroup] = []


def kept_group() -> KeptGroup | None:
    """Return the kept group of this process, if it has one."""
    return _kept[0] if _kept else None


def _kind(backend: str | None, cuda: Any = torch.cuda) -> _Kind | None:
    """Return the kind of a backend, None if it cannot get other peers."""
    if not dist.is_gloo_available() or not hasattr(dist.ProcessGroupGloo._Options, "enable_reconfigure"):
        return None
    kinds, torchs = dist.ProcessGroup.BackendType, dist.distributed_c10d
    if backend is None:  # as PyTorch would choose
        accelerator = torch.accelerator.current_accelerator(check_available=True)
        backend = dist.Backend.default_device_backend_map.get(accelerator.type if accelerator else "cpu")
    if backend == "gloo":
        return _Kind(backend, kinds.GLOO, torchs._create_gloo_process_group, has_device=False)
    has_nccl2 = hasattr(dist, "ProcessGroupNCCL2") and torch.version.hip is None
    # PyTorch asks the same of it, but with what it makes for that, a process without a GPU ends by a signal.
    if backend in ("nccl", "nccl2") and has_nccl2 and cuda.device_count() > 0 and cuda.nccl.version() >= (2, 28):
        return _Kind(backend, kinds.NCCL, torchs._create_nccl2_process_group, has_device=True)
    return None


def init_process_group(backend: str | None = None, timeout: timedelta | None = None, **options: Any) -> None:
    """Make the default process group, one that can outlive the loss of a rank where that is possible.

    That is so for Gloo and NCCL (``nccl``, ``nccl2``, or none named) with PyTorch 2.14 or later, on numbered ranks of a
    job (``--per-device``), and without further options; everywhere else it is
    ``torch.distributed.init_process_group``.  With NCCL, the program has set its device before.  The training then has
    to go on with `Resumed.steps`.

    Parameters
    ----------
    backend, timeout
        As for ``torch.distributed.init_process_group``.
    options
        Its other arguments.
    """
    kind = None if options else _kind(backend)
    if kind is not None and (membership := Job.current().membership) is not None and membership.size > 1:
        _kept[:] = [KeptGroup(membership, kind, timeout)]
    else:
        dist.init_process_group(backend, timeout=timeout, **options)
