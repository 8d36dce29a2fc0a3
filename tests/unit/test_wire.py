"""Messages between the controller and the agents: each is read as it was sent, and nothing else is read."""

from __future__ import annotations

import dataclasses
import importlib
import json
import pkgutil

import pytest

from laggard.resilience import wire
from laggard.resilience.decision.evidence import GpuHealth, Memory, NodeCheck
from laggard.resilience.decision.stacks import Frame, RankStack
from laggard.resilience.errors import MessageError
from laggard.resilience.reading.targets import NoAnswer, Target
from laggard.resilience.wire import Command, Inbox, Report, decode, encode
from laggard.resilience.wire.checks import AskTargets, NodeChecked, Stacks, TargetsAsked
from laggard.resilience.wire.node import Ping, Pong, SetUp
from laggard.resilience.wire.tasks import Output, SignalTask, StartTask
from laggard.resilience.wire.warm import KeepWarm, Run

STACK = RankStack("n2", 3, 41, "S", "pipe_read", active=True, threads=((Frame("step", "train.py", 7),),))


@pytest.mark.parametrize(
    "record",
    [
        Ping(),
        Pong(1.5),
        SetUp("/run/1", {"endpoint.json": "{}\n"}, {"NAME": "\udcff"}, 3),
        StartTask("copy", ("sh", "-c", 'echo "\n'), {"RANK": "0"}, restarts=True),
        Output("copy", "stderr", b"\xff\x00\n\xc3\xa9"),
        Run({}, "/work", None),
        Run({}, "/work", "imports.txt"),
        KeepWarm(("python", "a.py"), {}, ("RANK",), "/work", ("numpy",), writes_stacks=True),
        AskTargets(3, (Target("url", "a", 80, "http://a:80/"), Target("path", of="/x")), ("10.0.0.1",)),
        TargetsAsked(3, (None, NoAnswer("HTTP", 503))),
        NodeChecked(None),
        NodeChecked(
            NodeCheck(9.0, {"0": GpuHealth(lost=True)}, {"/": 1}, 2, ("Xid 79",), {"1": "wrong"}, Memory(2, 1))
        ),
        Stacks((dataclasses.replace(STACK, children=(STACK,)),), {"copy": "Traceback"}),
    ],
)
def test_a_message_is_read_as_it_was_sent(record: object) -> None:
    line = encode(record)
    assert line.count(b"\n") == 1
    assert decode(line, type(record)) == record


def test_a_task_is_nothing_special_unless_it_says_so() -> None:
    task = StartTask("copy", ("sh",))
    flags = {field.name for field in dataclasses.fields(task) if getattr(task, field.name) in (True, False)}
    assert {name for name in flags if getattr(task, name)} == set()
    assert "outlives_launches" in flags


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("", "a line is not JSON"),
        ("[]", "a line is not a record"),
        ("{}", "a line is not a record"),
        ('{"is": "Pong", "time_s": 1}', "Pong is not expected here"),
        ('{"is": "SignalTask", "name": "t"}', "SignalTask lacks 'signum'"),
        ('{"is": "SignalTask", "name": 7, "signum": 15}', "SignalTask.name must be of type str, not int"),
        ('{"is": "SignalTask", "name": "t", "signum": true}', "SignalTask.signum must be of type int, not bool"),
        ('{"is": "SignalTask", "name": "t", "signum": 15.0}', "SignalTask.signum must be of type int, not float"),
        ('{"is": "SetUp", "directory": "/", "n_nodes": null}', "SetUp.n_nodes must be of type int, not NoneType"),
        (
            '{"is": "Run", "environment": {}, "directory": "/", "imports": 1}',
            "Run.imports must be of type str, not int",
        ),
        (
            '{"is": "Output", "name": "t", "stream": "stdin", "data": ""}',
            "Output.stream must be of type Literal, not str",
        ),
    ],
)
def test_what_is_no_message_of_ours_is_refused_by_name(line: str, complaint: str) -> None:
    with pytest.raises(MessageError, match=complaint):
        decode(line.encode(), Ping, SignalTask, SetUp, Run, Output)


def test_an_error_never_shows_what_a_message_holds() -> None:
    line = json.dumps({"is": "SetUp", "directory": "/", "files": {"endpoint.json": ["s3cret"]}})
    with pytest.raises(MessageError) as caught:
        decode(line.encode(), SetUp)
    assert str(caught.value) == "SetUp.files must be of type str, not list"


def test_each_message_has_a_name_of_its_own_and_one_direction() -> None:
    modules = [importlib.import_module(f"{wire.__name__}.{each.name}") for each in pkgutil.iter_modules(wire.__path__)]
    records = {value for module in modules for value in vars(module).values() if dataclasses.is_dataclass(value)}
    ours = {each for each in records if isinstance(each, type) and each.__module__.startswith(wire.__name__)}
    assert len({each.__name__ for each in ours}) == len(ours)
    assert not any(issubclass(each, Command) and issubclass(each, Report) for each in ours)


def test_an_inbox_calls_what_takes_a_kind_of_message_and_reads_no_other() -> None:
    inbox, seen = Inbox(), list[object]()
    inbox.on(SignalTask, seen.append)
    inbox.take(inbox.read(encode(SignalTask("t", 15))))
    assert seen == [SignalTask("t", 15)]
    with pytest.raises(MessageError, match="Ping is not expected here"):
        inbox.read(encode(Ping()))
