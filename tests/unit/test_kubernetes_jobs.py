"""The manifests of ``laggard kubernetes``, and the examples that it wrote."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
import yaml
from click.testing import CliRunner

from laggard.resilience.allocation.place import PORT, Place, place_in
from laggard.resilience.command.cli import cli, load_command
from laggard.resilience.controller.controller import ENDING_S
from laggard.resilience.decision.events import EXIT_NO_PROGRESS, EXIT_TOO_FEW_NODES
from laggard.resilience.errors import UsageError
from tests.printed import MANIFEST

EXAMPLES = Path(__file__).parents[2] / "examples"
DEFINITIONS = os.environ.get("LAGGARD_KUBERNETES_DEFINITIONS", "")
JOBSETS, RAYJOBS = "jobset.x-k8s.io_jobsets.yaml", "ray.io_rayjobs.yaml"
IMAGE = ("--image=a/b:1", "--nodes=3", "--gpus-per-node=2")


def written(*arguments: str) -> str:
    given = ["kubernetes", *arguments]
    return CliRunner().invoke(cli, given, obj=given, catch_exceptions=False, standalone_mode=False).output


def objects(*arguments: str) -> dict[str, Any]:
    return {each["kind"]: each for each in yaml.safe_load_all(written(*arguments))}


def job_spec(*arguments: str) -> dict[str, Any]:
    found = objects(*arguments)
    if "Job" in found:
        return dict(found["Job"]["spec"])
    return dict(found["JobSet"]["spec"]["replicatedJobs"][0]["template"]["spec"])


@pytest.mark.parametrize("name", ["jobset.yaml", "indexed_job.yaml"])
def test_the_examples_are_what_the_command_in_their_first_line_writes(name: str) -> None:
    text = (EXAMPLES / name).read_text()
    laggard, command, *arguments = shlex.split(text.partition("\n")[0].removeprefix("# Written by: "))
    assert (laggard, command) == ("laggard", "kubernetes")
    assert text == written(*arguments)


def test_the_guides_command_writes_a_jobset_of_nine_pods() -> None:
    _, _, *arguments = shlex.split(MANIFEST)
    assert list(objects(*arguments)) == ["JobSet"]
    assert job_spec(*arguments)["completions"] == 9


def unknown_fields(tree: Any, schema: dict[str, Any], path: str = "") -> Iterator[str]:
    """Yield the fields that a server with strict validation would refuse."""
    if isinstance(tree, list):
        for number, part in enumerate(tree):
            yield from unknown_fields(part, schema["items"], f"{path}[{number}]")
    elif isinstance(tree, dict) and "properties" in schema:
        for name, part in tree.items():
            if name in schema["properties"]:
                yield from unknown_fields(part, schema["properties"][name], f"{path}.{name}")
            else:
                yield f"{path}.{name}"


@pytest.mark.skipif(not DEFINITIONS, reason="LAGGARD_KUBERNETES_DEFINITIONS names no folder with the definitions")
@pytest.mark.parametrize(
    "more", [(), ("--claim=state", "--queue=gpus", "--cpus=8", "--memory=1Gi", "--service-account=a")]
)
def test_the_manifests_fit_the_published_definitions(more: tuple[str, ...]) -> None:
    (version,) = yaml.safe_load((Path(DEFINITIONS) / JOBSETS).read_text())["spec"]["versions"]
    jobset = version["schema"]["openAPIV3Schema"]
    # What a JobSet says of a Job is what Kubernetes itself says of it.
    job = jobset["properties"]["spec"]["properties"]["replicatedJobs"]["items"]["properties"]["template"]
    for kind, name, schema in (("jobset", "JobSet", jobset), ("job", "Job", job)):
        manifest = objects(f"--kind={kind}", *IMAGE, *more, "--", "train.py")[name]
        shown = manifest if name == "JobSet" else {"spec": manifest["spec"]}
        jsonschema.Draft202012Validator(schema).validate(shown)
        assert list(unknown_fields(shown, schema)) == []
        pod = job_spec(f"--kind={kind}", *IMAGE, *more, "--", "train.py")["template"]["spec"]
        pod["containers"][0]["comand"] = []
        assert len(list(unknown_fields(pod, job["properties"]["spec"]["properties"]["template"]["properties"]["spec"])))


@pytest.mark.skipif(not DEFINITIONS, reason="LAGGARD_KUBERNETES_DEFINITIONS names no folder with the definitions")
def test_the_rayjob_fits_the_published_definition() -> None:
    versions = yaml.safe_load((Path(DEFINITIONS) / RAYJOBS).read_text())["spec"]["versions"]
    manifest = yaml.safe_load((EXAMPLES / "rayjob.yaml").read_text())
    (schema,) = (
        each["schema"]["openAPIV3Schema"] for each in versions if manifest["apiVersion"].endswith(each["name"])
    )
    jsonschema.Draft202012Validator(schema).validate(manifest)
    assert list(unknown_fields({"spec": manifest["spec"]}, schema)) == []


@pytest.mark.parametrize(
    ("kind", "pod"),
    [("jobset", "train-nodes-0-{}.train.ns.svc.cluster.local"), ("job", "train-{}.train.ns.svc.cluster.local")],
)
def test_each_pod_finds_out_which_node_it_is_and_where_the_first_one_is(kind: str, pod: str) -> None:
    found = objects(f"--kind={kind}", *IMAGE, "--", "train.py")
    spec = job_spec(f"--kind={kind}", *IMAGE, "--", "train.py")
    assert spec["completionMode"] == "Indexed"
    assert spec["completions"] == spec["parallelism"] == 3
    container = spec["template"]["spec"]["containers"][0]
    variables = {each["name"]: each.get("value") for each in container["env"]}
    sources = {each["name"]: each["valueFrom"] for each in container["env"] if variables[each["name"]] is None}
    assert sources["LAGGARD_MACHINE"] == {"fieldRef": {"fieldPath": "spec.nodeName"}}
    assert "secretKeyRef" in sources["LAGGARD_JOIN_SECRET"]
    environ = {"NNODES": variables["NNODES"], "JOB_COMPLETION_INDEX": "2"}
    assert place_in(environ, None, pod.format(2)) == Place(2, 3, pod.format(0), PORT)
    # The names of pods are known to all before the pods are ready.
    if kind == "job":
        assert found["Service"]["spec"]["clusterIP"] == "None"
        assert found["Service"]["spec"]["publishNotReadyAddresses"] is True
        assert spec["template"]["spec"]["subdomain"] == found["Service"]["metadata"]["name"]
    else:
        assert found["JobSet"]["spec"]["network"]["publishNotReadyAddresses"] is True


def test_a_pod_is_killed_only_after_the_program_and_the_job_had_time_to_end() -> None:
    for options, grace_s in (((), 10.0), (("--grace=90.5",), 90.5)):
        pod = job_spec(*IMAGE, "--", *options, "train.py")["template"]["spec"]
        assert pod["terminationGracePeriodSeconds"] >= grace_s + ENDING_S


def test_what_ends_the_same_way_each_time_is_not_tried_again_and_who_is_preempted_has_lost_nothing() -> None:
    preempted, final, told = job_spec(*IMAGE, "--", "train.py")["podFailurePolicy"]["rules"]
    assert preempted == {
        "action": "Ignore",
        "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
    }
    assert (final["action"], final["onExitCodes"]["values"]) == ("FailJob", [2, EXIT_TOO_FEW_NODES, EXIT_NO_PROGRESS])
    assert (told["action"], told["onExitCodes"]["values"]) == ("Ignore", [143])


def test_the_command_of_a_pod_is_the_users_own() -> None:
    spec = job_spec(*IMAGE, "--claim=work", "--", "--resilient", "train.py", "--lr", "1")["template"]["spec"]
    (container,) = spec["containers"]
    laggard, run, *arguments = container["command"]
    assert (laggard, run) == ("laggard", "run")
    options = load_command("run").make_context("run", arguments).params
    assert (options["program"], options["arguments"], options["resilient"]) == ("train.py", ("--lr", "1"), True)
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    assert str(options["state_dir"]) in mounts
    assert {volume["name"] for volume in spec["volumes"]} == {*mounts.values()}
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "2"}


@pytest.mark.parametrize("name", ["Train", "1train", "train-", "t" * 41, "train_1"])
def test_a_name_that_kubernetes_refuses_is_refused_at_once(name: str) -> None:
    with pytest.raises(UsageError, match="is not a valid name: use up to 40 of a-z, 0-9 and dashes"):
        written(f"--name={name}", *IMAGE, "--", "train.py")


def test_options_of_the_job_that_do_not_fit_together_are_refused_at_once() -> None:
    with pytest.raises(UsageError, match="--exhaust-resources has no effect without --resilient"):
        written(*IMAGE, "--", "--exhaust-resources", "train.py")
