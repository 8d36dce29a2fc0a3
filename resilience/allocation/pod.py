"""A pod of Kubernetes, and the one thing that it writes to the API server, if its manifest asks for that."""

from __future__ import annotations

import http.client
import json
import os
import ssl
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

from laggard.resilience.allocation.base import Unmanaged
from laggard.resilience.allocation.time_to_save import TimeToSave
from laggard.resilience.errors import ResourceManagerError

ANNOTATES = "LAGGARD_ANNOTATE_NODES"
ANNOTATION = "laggard/verdict"
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")  # where Kubernetes mounts the pod's token
ANSWER_S = 5.0


class Pod(Unmanaged):
    """Kubernetes: who is told to end there is killed after a time that the manifest gives."""

    def __init__(self, seconds: float, environ: Mapping[str, str] = os.environ, account: Path = ACCOUNT) -> None:
        self._seconds, self._environ, self._account = seconds, environ, account

    def time_to_save(self) -> TimeToSave:
        """Return how long a pod has."""
        return TimeToSave(self._seconds)

    def remark(self, machine: str, why: str) -> None:
        """Annotate the Node that a machine is there."""
        if self._environ.get(ANNOTATES):
            try:
                self._annotate(machine, why)
            except (OSError, KeyError, ValueError, http.client.HTTPException) as error:
                raise ResourceManagerError(f"was not annotated: {error}", f"node {machine}") from error

    def _annotate(self, machine: str, why: str) -> None:
        where = self._environ["KUBERNETES_SERVICE_HOST"], int(self._environ["KUBERNETES_SERVICE_PORT"])
        token = (self._account / "token").read_text().strip()  # Kubernetes renews it
        trusted = ssl.create_default_context(cafile=self._account / "ca.crt")
        server = http.client.HTTPSConnection(*where, timeout=ANSWER_S, context=trusted)
        try:
            body = json.dumps({"metadata": {"annotations": {ANNOTATION: why}}})
            headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/merge-patch+json"}
            server.request("PATCH", f"/api/v1/nodes/{quote(machine, safe='')}", body, headers)
            answer = server.getresponse()
            if answer.status != http.client.OK:
                raise OSError(f"the API server answers {answer.status} {answer.reason}")
        finally:
            server.close()
