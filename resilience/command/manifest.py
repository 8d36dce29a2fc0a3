"""Manifests for Kubernetes: a Job, by itself or in a JobSet, each of whose pods runs the same command. Pure."""

from __future__ import annotations

import math
import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from laggard.resilience.agent.handshake import MACHINE_VARIABLE
from laggard.resilience.allocation.place import SECRET_VARIABLE
from laggard.resilience.allocation.pod import ANNOTATES
from laggard.resilience.command.cli import EXIT_USAGE
from laggard.resilience.decision.events import EXIT_NO_PROGRESS, EXIT_TOO_FEW_NODES
from laggard.resilience.errors import UsageError
from laggard.system.termination_message import TERMINATION_MESSAGE

Kind = Literal["jobset", "job"]
Tree = dict[str, Any]
# To end the job and its nodes once the program has saved.
_ENDING_S = 20.0
# None of them ends differently the next time.
_FINAL = EXIT_USAGE, EXIT_TOO_FEW_NODES, EXIT_NO_PROGRESS
_TOLD_TO_END = 128 + signal.SIGTERM
_RESTARTS_OF_A_POD = 3
_CONTAINER = "laggard"
# The names of pods, which have up to 63 characters, begin with it.
_NAME = re.compile(r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pods:
    """What the pods of a job are to be."""

    name: str
    image: str
    n_nodes: int
    gpus_per_node: int
    gpu_resource: str = "nvidia.com/gpu"
    cpus: str | None = None  # quantities, as Kubernetes writes them
    memory: str | None = None
    shared_memory: str = "16Gi"
    claim: str | None = None  # of a volume that all pods can write to, for State
    queue: str | None = None  # of Kueue
    service_account: str | None = None  # one that may patch nodes


def manifests(kind: Kind, pods: Pods, arguments: Sequence[str], grace_s: float) -> list[Tree]:
    """Return the objects that start a job with these arguments of ``laggard run``."""
    if not _NAME.fullmatch(pods.name):
        raise UsageError(f"--name={pods.name}", "is not a valid name", "use up to 40 of a-z, 0-9 and dashes")
    labels = {"labels": {"kueue.x-k8s.io/queue-name": pods.queue}} if pods.queue else {}
    metadata = {"name": pods.name, **labels}
    job = _job(pods, arguments, grace_s)
    if kind == "jobset":
        spec = {
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
            "replicatedJobs": [{"name": "nodes", "replicas": 1, "template": {"spec": job}}],
        }
        return [{"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": metadata, "spec": spec}]
    job["template"]["spec"] = {"subdomain": pods.name, **job["template"]["spec"]}
    selector = {"batch.kubernetes.io/job-name": pods.name}
    # Each pod needs its name before it is ready, and the pods find the first one by its name.
    service = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": selector}
    return [
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": pods.name}, "spec": service},
        {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": job},
    ]


def _job(pods: Pods, arguments: Sequence[str], grace_s: float) -> Tree:
    rules: list[Tree] = [
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        {"action": "FailJob", "onExitCodes": _exit_codes(*_FINAL)},
        {"action": "Ignore", "onExitCodes": _exit_codes(_TOLD_TO_END)},
    ]
    return {
        "completionMode": "Indexed",
        "completions": pods.n_nodes,
        "parallelism": pods.n_nodes,
        "backoffLimitPerIndex": _RESTARTS_OF_A_POD,
        "podFailurePolicy": {"rules": rules},
        "successPolicy": {"rules": [{"succeededIndexes": "0"}]},
        "template": {"spec": _pod(pods, arguments, grace_s)},
    }


def _exit_codes(*values: int) -> Tree:
    return {"containerName": _CONTAINER, "operator": "In", "values": [*values]}


def _pod(pods: Pods, arguments: Sequence[str], grace_s: float) -> Tree:
    secret = {"secretKeyRef": {"name": f"{pods.name}-join", "key": "secret"}}
    wanted = {"cpu": pods.cpus, "memory": pods.memory}
    resources = {what: amount for what, amount in wanted.items() if amount}
    if pods.gpus_per_node:
        resources[pods.gpu_resource] = str(pods.gpus_per_node)
    mounts, volumes = _volumes(pods)
    container = {
        "name": _CONTAINER,
        "image": pods.image,
        "command": ["laggard", "run", *(["--state-dir=/state"] if pods.claim else []), *arguments],
        "env": [
            {"name": "NNODES", "value": str(pods.n_nodes)},
            {"name": SECRET_VARIABLE, "valueFrom": secret},
            *([{"name": ANNOTATES, "value": "1"}] if pods.service_account else []),
            # By which the site's history of nodes knows it, rather than by the pod's.
            {"name": MACHINE_VARIABLE, "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        ],
        **({"resources": {"requests": {**resources}, "limits": {**resources}}} if resources else {}),
        "terminationMessagePath": str(TERMINATION_MESSAGE),
        "volumeMounts": mounts,
    }
    return {
        **({"serviceAccountName": pods.service_account} if pods.service_account else {}),
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": math.ceil(grace_s + _ENDING_S),
        "containers": [container],
        "volumes": volumes,
    }


def _volumes(pods: Pods) -> tuple[list[Tree], list[Tree]]:
    mounts: list[Tree] = [{"name": "shared-memory", "mountPath": "/dev/shm"}]  # noqa: S108 - a mount
    volumes: list[Tree] = [{"name": "shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": pods.shared_memory}}]
    if pods.claim:
        mounts.append({"name": "state", "mountPath": "/state"})
        volumes.append({"name": "state", "persistentVolumeClaim": {"claimName": pods.claim}})
    return mounts, volumes
