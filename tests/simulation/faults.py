"""The faults of a schedule: what is hit, and when; each undoes itself after a while, or never."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from laggard.kvstore.client.environment import LAUNCH, NODE
from tests.simulation.pipes import PROMPT_S
from tests.simulation.processes import Process
from tests.simulation.programs import BUG, ECC

if TYPE_CHECKING:
    from tests.simulation.job import Job

__all__ = ["CLOCK_STEPS_S", "FAULTS", "Fault", "arm", "heal"]

XID = "NVRM: Xid (PCI:0000:07:00): 79, pid=4211, GPU has fallen off the bus."
LENGTHS_S = (0.2, 1.0, 3.0, 4.0, 8.0, 25.0, 70.0, None)
SLOW_S = (0.3, 1.5, 4.0)
CLOCK_STEPS_S = (-7200.0, -400.0, 400.0, 7200.0)


@dataclass(frozen=True)
class Fault:
    """One fault.

    Attributes
    ----------
    name
        Its kind, a key of `FAULTS`.
    after_s
        When it strikes: so many seconds after the one before it ...
    after_steps
        ... or after so many steps of the controller since then.
    length_s
        After how many seconds it is undone; None: not before the end.
    number
        Chooses the victim, and how many messages are hit.
    """

    name: str
    after_s: float
    after_steps: int
    length_s: float | None
    number: int

    @classmethod
    def draw(cls, chance: random.Random, names: tuple[str, ...]) -> Fault:
        """Return a random one."""
        steps = chance.randrange(1, 80) if chance.random() < 0.5 else 0
        return cls(
            chance.choice(names), chance.uniform(0.0, 4.0), steps, chance.choice(LENGTHS_S), chance.randrange(1, 1000)
        )

    def __str__(self) -> str:
        when = f"after {self.after_steps} steps" if self.after_steps else f"after {self.after_s:.3f} s"
        return f"{self.name} {when}, for {'ever' if self.length_s is None else f'{self.length_s:g} s'}, {self.number}"


def arm(job: Job, faults: tuple[Fault, ...]) -> None:
    """Have the faults strike one after the other."""
    if not faults:
        return
    fault, *rest = faults

    def strike() -> None:
        job.judge.fault(fault, FAULTS[fault.name](job, fault))
        arm(job, tuple(rest))

    command = job.command
    if fault.after_steps and command is not None and not command.ended:
        command.trap = (command.steps + fault.after_steps, strike)
        # ... or when the command ends before
    else:
        job.scheduler.at(fault.after_s, strike)


def heal(job: Job) -> None:
    """Undo everything that still goes wrong."""
    for link in job.links.values():
        link.latency_s = PROMPT_S
        link.heal()
    job.disk.calm()
    for host in job.machine.hosts.values():
        host.thaw()
        for process in list(host.processes):
            process.release()
            process.send_signal(signal.SIGCONT)


def _undo(job: Job, fault: Fault, undo: Callable[[], object]) -> None:
    if fault.length_s is not None:
        job.scheduler.at(fault.length_s, undo)


def _rank(job: Job, fault: Fault) -> Process | None:
    ranks = job.ranks()
    return ranks[fault.number % len(ranks)] if ranks else None


def _host(job: Job, fault: Fault, first: int = 0) -> str:
    hosts = job.plan.hosts[first:]
    return hosts[fault.number % len(hosts)]


def _kill_rank(job: Job, fault: Fault) -> str:
    if (rank := _rank(job, fault)) is None:
        return "no rank"
    rank.send_signal(signal.SIGKILL)
    return str(rank)


def _fail_rank(job: Job, fault: Fault) -> str:
    if (rank := _rank(job, fault)) is None:
        return "no rank"
    if rank.stderr is not None and not rank.stderr.pipe.broken and not rank.halted:
        lines = BUG if fault.number % 2 else (ECC,)
        rank.stderr.pipe.arrive("".join(f"{line}\n" for line in lines).encode())
    rank.exit(1)
    return str(rank)


def _break_gpu(job: Job, fault: Fault) -> str:
    if (rank := _rank(job, fault)) is None:
        return "no rank"
    rank.host.kernel_lines.append(XID)
    rank.send_signal(signal.SIGABRT)
    return str(rank)


def _stick_rank(job: Job, fault: Fault) -> str:
    if (rank := _rank(job, fault)) is None:
        return "no rank"
    rank.stuck = True
    if job.plan.settings.resilient:
        _undo(job, fault, rank.release)
    else:  # nobody has to do anything about it, so it must pass
        job.scheduler.at(5.0, rank.release)
    # Without a timeout for hangs nobody would notice.
    blamed = [] if fault.number % 2 else [host for host in job.plan.hosts[1:] if host == rank.environment[NODE]]
    job.disk.ask(rank.environment[LAUNCH], blamed)
    return str(rank)


def _freeze_rank(job: Job, fault: Fault) -> str:
    if (rank := _rank(job, fault)) is None:
        return "no rank"
    return _freeze(job, fault, rank)


def _freeze(job: Job, fault: Fault, process: Process) -> str:
    if process.frozen:
        return f"{process}, which is stopped already"
    process.send_signal(signal.SIGSTOP)
    _undo(job, fault, lambda: process.send_signal(signal.SIGCONT))
    return str(process)


def _kill_agent(job: Job, fault: Fault) -> str:
    host = _host(job, fault)
    if (agent := job.agent_of(host)) is None:
        return f"no agent on {host}"
    agent.send_signal(signal.SIGKILL)
    job.judge.node_hit(host, None)
    return host


def _freeze_agent(job: Job, fault: Fault) -> str:
    host = _host(job, fault)
    if (agent := job.agent_of(host)) is None or agent.frozen:
        return f"no agent runs on {host}"
    job.judge.node_hit(host, fault.length_s)
    return _freeze(job, fault, agent)


def _end_agent(job: Job, fault: Fault) -> str:
    host = _host(job, fault)
    if (agent := job.agent_of(host)) is None:
        return f"no agent on {host}"
    agent.send_signal(signal.SIGTERM)
    return host


def _stick_agent(job: Job, fault: Fault) -> str:
    host = _host(job, fault)
    if (agent := job.agent_of(host)) is None or agent.halted:
        return f"no agent runs on {host}"
    agent.stuck = True
    job.judge.node_hit(host, fault.length_s)
    _undo(job, fault, agent.release)
    return host


def _freeze_host(job: Job, fault: Fault) -> str:
    name = _host(job, fault, 1)
    if not job.plan.remote:
        return "all nodes are on one machine"
    host = job.machine.hosts[name]
    if host.frozen:
        return f"{name}, which is frozen already"
    host.freeze()
    _undo(job, fault, host.thaw)
    job.judge.node_hit(name, fault.length_s)
    return name


def _cut(job: Job, fault: Fault) -> str:
    name = _host(job, fault, 1)
    link = job.links[name]
    if link.is_cut:
        return f"{name}, which is cut off already"
    if job.plan.remote:
        job.judge.node_hit(name, fault.length_s)
    link.is_cut = True
    _undo(job, fault, link.heal)
    return name


def _slow_link(job: Job, fault: Fault) -> str:
    name = _host(job, fault, 1)
    link = job.links[name]
    link.latency_s = SLOW_S[fault.number % len(SLOW_S)]

    def undo() -> None:
        link.latency_s = PROMPT_S

    _undo(job, fault, undo)
    return f"{name}, {link.latency_s} s"


def _reset_link(job: Job, fault: Fault) -> str:
    name = _host(job, fault, 1)
    for process in job.primary.living:
        if process.tag == ("relay", name):
            process.send_signal(signal.SIGKILL)
            job.judge.node_hit(name, None)
    return name


def _kill_check(job: Job, fault: Fault) -> str:
    for host in job.machine.hosts.values():
        for process in host.living:
            if process.tag == "question":
                process.send_signal(signal.SIGKILL if fault.number % 2 else signal.SIGSTOP)
                return str(process)
    return "no check"


def _kill_server(job: Job, fault: Fault) -> str:
    job.disk.load_s = (0.05, 0.5, 5.0, 20.0)[fault.number % 4]
    job.disk.failing_starts = (0, 0, 0, 1, 3)[fault.number % 5]
    if job.disk.process is not None:
        job.disk.process.send_signal(signal.SIGKILL)
    return f"loads for {job.disk.load_s} s, {job.disk.failing_starts} starts fail"


def _freeze_server(job: Job, fault: Fault) -> str:
    return "none" if job.disk.process is None else _freeze(job, fault, job.disk.process)


def _slow_server(job: Job, fault: Fault) -> str:
    job.disk.latency_s = SLOW_S[fault.number % 2]
    _undo(job, fault, job.disk.speed_up)
    return f"{job.disk.latency_s} s"


def _lose_commands(job: Job, fault: Fault) -> str:
    job.disk.lose_commands += 1 + fault.number % 5
    return ""


def _lose_answers(job: Job, fault: Fault) -> str:
    job.disk.lose_answers += 1 + fault.number % 5
    return ""


def _repeat_requests(job: Job, fault: Fault) -> str:
    job.disk.repeats += 1 + fault.number % 3
    return ""


def _kill_controller(job: Job, fault: Fault) -> str:
    if job.command is None or job.command.ended:
        return "it has ended"
    if job.command.frozen:
        job.command.send_signal(signal.SIGCONT)
    job.run_again_after_s = 0.2 + fault.number / 500
    job.command.send_signal(signal.SIGKILL)
    return ""


def _freeze_controller(job: Job, fault: Fault) -> str:
    if job.command is None or job.command.halted or job.command.ended:
        return "it does not run"
    job.judge.controller_frozen()
    job.command.send_signal(signal.SIGSTOP)
    command = job.command
    length_s = 70.0 if fault.length_s is None else fault.length_s

    def undo() -> None:
        command.send_signal(signal.SIGCONT)
        job.judge.controller_frozen()

    job.scheduler.at(length_s, undo)
    return ""


def _set_clock(job: Job, fault: Fault) -> str:
    job.scheduler.clock_set_by_s += (step_s := CLOCK_STEPS_S[fault.number % len(CLOCK_STEPS_S)])
    return f"by {step_s} s"


def _stop(job: Job, fault: Fault) -> str:
    if job.command is None or job.command.ended or not job.command.handlers:
        return "it does not run"
    job.judge.stopped = True
    job.command.send_signal(signal.SIGTERM if fault.number % 2 else signal.SIGINT)
    return ""


FAULTS: Mapping[str, Callable[[Job, Fault], str]] = {
    "a rank is killed": _kill_rank,
    "a rank fails": _fail_rank,
    "a GPU is lost": _break_gpu,
    "a rank cannot be killed": _stick_rank,
    "a rank is stopped": _freeze_rank,
    "an agent is killed": _kill_agent,
    "an agent is stopped": _freeze_agent,
    "an agent is asked to end": _end_agent,
    "an agent hangs in the kernel": _stick_agent,
    "a machine freezes": _freeze_host,
    "the network is cut": _cut,
    "the network is slow": _slow_link,
    "a connection breaks": _reset_link,
    "a node check ends early": _kill_check,
    "the state server is killed": _kill_server,
    "the state server is stopped": _freeze_server,
    "the state server is slow": _slow_server,
    "commands get lost": _lose_commands,
    "answers get lost": _lose_answers,
    "requests come twice": _repeat_requests,
    "the controller is killed": _kill_controller,
    "the controller is stopped": _freeze_controller,
    "the clock is set": _set_clock,
    "the job is stopped": _stop,
}
