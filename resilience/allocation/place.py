"""Which copy of the job's command this is, where something else starts the same command on every node. Pure."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from secrets import token_hex

from laggard.resilience.agent.dialling import JoinToken
from laggard.resilience.allocation.agent_listener import MEMBER_BYTES
from laggard.resilience.errors import UsageError
from laggard.system.certificates import Authority
from laggard.system.ports import host_and_port

PORT = 27182
SECRET_VARIABLE = "LAGGARD_JOIN_SECRET"  # noqa: S105 - its name
COMPLETION_INDEX = "JOB_COMPLETION_INDEX"
LEAST_SECRET = 16
# Who starts a command on every node says in these which copy it is, and of how many.
_COUNTED = (
    ("NODE_RANK", "NNODES"),
    ("PET_NODE_RANK", "PET_NNODES"),  # torchrun's defaults, as Kubeflow's trainer sets them
    ("GROUP_RANK", "GROUP_WORLD_SIZE"),
    (COMPLETION_INDEX, "NNODES"),  # Kubernetes says how many in no variable: the manifest does
    ("FLUX_TASK_RANK", "FLUX_JOB_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("PMIX_RANK", "NNODES"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
    ("RANK", "WORLD_SIZE"),  # of pods, with Kubeflow's PyTorchJob
)
FIRST_NODE = ("MASTER_ADDR", "PET_MASTER_ADDR")
# With these a library in the program would take itself for a process of the launcher's.
_LAUNCHERS = ("OMPI_", "PMIX_", "PMI_")
_ADDRESS = re.compile(r"(?P<host>[^:\[\]\s]+|\[[0-9A-Fa-f:.]+\])(?::(?P<port>\d+))?")


@dataclass(frozen=True, slots=True)
class Place:
    """One of several copies of a command, the first of which is the primary."""

    index: int
    n_nodes: int
    host: str  # name or address of the first one, and the port at which it listens
    port: int

    def __str__(self) -> str:
        return host_and_port(self.host, self.port)


def place_in(environ: Mapping[str, str], address: str | None, full_name: str) -> Place:
    """Return which copy this is; ``full_name``: this machine's, with its domain."""
    found = next((names for names in _COUNTED if names[0] in environ), None)
    if found is None:
        fix = "set NODE_RANK and NNODES on each node"
        raise UsageError("--join", "does not find out which of the job's nodes this is", fix)
    index, n_nodes = (_number(environ, name) for name in found)
    if index >= n_nodes:
        raise UsageError(f"{found[0]}={index}", f"is not below {found[1]}={n_nodes}", "count from 0")
    first = next((environ[name] for name in FIRST_NODE if environ.get(name)), "")
    if COMPLETION_INDEX in environ:
        first = first or _first_pod(full_name, index)
    given = address or first
    if not given:
        fix = "give --join=HOST, or set MASTER_ADDR"
        raise UsageError("--join", "does not find out where the first node is", fix)
    match = _ADDRESS.fullmatch(given)
    if match is None or int(match["port"] or PORT) not in range(1, 1 << 16):
        raise UsageError(f"--join={given}", "is not an address", "give HOST or HOST:PORT, of the first node")
    return Place(index, n_nodes, match["host"].strip("[]"), int(match["port"] or PORT))


def _number(environ: Mapping[str, str], name: str) -> int:
    text = environ.get(name, "")
    if not text.isdecimal():
        raise UsageError(f"{name}={text}", "is not a number", "set it to that of the job's nodes")
    return int(text)


def _first_pod(full_name: str, index: int) -> str:
    """Return the name of the pod with index 0 of the same Job, given that of one: ``train-3.train.default.svc``."""
    pod, dot, domain = full_name.partition(".")
    stem, _, number = pod.rpartition("-")
    return f"{stem}-0{dot}{domain}" if stem and number == str(index) else ""


def own_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without the secret, and without what only this copy of the command should read."""
    counted = next((names for names in _COUNTED if names[0] in environ), ())
    hidden = {SECRET_VARIABLE, *counted}
    return {name: value for name, value in environ.items() if name not in hidden and not name.startswith(_LAUNCHERS)}


@dataclass(frozen=True, slots=True)
class JoinSecret:
    """What the nodes of a job share: from it follow the controller's authority, and each member's id and secret."""

    seed: bytes = field(repr=False)

    @classmethod
    def of_text(cls, text: str, source: str) -> JoinSecret:
        """Return the secret that a text is; ``source`` says where it is from. Versions of laggard do not mix."""
        if len(text.strip()) < LEAST_SECRET:
            fix = f"give {LEAST_SECRET} characters or more, the same on each node, as 'openssl rand -hex 32' makes"
            raise UsageError(source, "holds no secret" if not text.strip() else "is too short a secret", fix)
        return cls(hashlib.sha256(text.strip().encode()).digest())

    def authority(self) -> Authority:
        """Return the authority that the controller's certificate is from."""
        return Authority(self._derived(b"authority"))

    def member(self, index: int) -> tuple[bytes, bytes]:
        """Return a member's id, with which those of its agents begin, and its secret."""
        own = self._token().of_node(str(index))
        return bytes.fromhex(own.agent)[:MEMBER_BYTES], bytes.fromhex(own.secret)

    def token(self, place: Place, address: str, own: str = "") -> JoinToken:
        """Return a join token for one more agent of a member; ``own``: from where it dials, if not from anywhere."""
        member, secret = self.member(place.index)
        agent = member.hex() + token_hex(16 - MEMBER_BYTES)
        certificate = self.authority().certificate
        return JoinToken(address, place.port, certificate, agent, secret.hex(), place.n_nodes, own)

    def _token(self) -> JoinToken:
        return JoinToken("", 0, "", "", self._derived(b"agents").hex())

    def _derived(self, use: bytes) -> bytes:
        return hmac.digest(self.seed, use + version("laggard").encode(), hashlib.sha256)
