"""Replacing ranks while the others keep their processes, in the order that keeps the invariants.

The launch number is raised: from here on nothing that is not in the new launch can write. Then it is published who is
replaced, and the others adopt the new launch. Once each rank has said so, all connect, and only then what is left of
the old launch is ended. Whatever does not come by its deadline, a relaunch takes its place.

Ranks of a node that the job goes on without train until others stand by on the node that takes its place. Then all stop
before the same step, and the rest is as above.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Literal

from laggard.kvstore.control import Request
from laggard.kvstore.membership import Formation, Imports, Leaving, Message, Offer, Ready, StandsBy
from laggard.records import record_of
from laggard.resilience.controller import wording
from laggard.resilience.controller.launches import Devices, Launches
from laggard.resilience.controller.records import Records, RequestReader
from laggard.resilience.decision import wording as decision_wording
from laggard.resilience.decision.events import JobStatus, ProgramHung, Reason, Settings
from laggard.resilience.decision.failure import Failure, explain
from laggard.resilience.decision.in_place import Loss, Obstacle, formation, hung_rank, moves, obstacle, with_spare
from laggard.resilience.decision.origin import ProcessEnd, by_one_clock
from laggard.resilience.decision.reasons import Change, Fact
from laggard.resilience.decision.roster import Roster
from laggard.resilience.nodes.cluster import Cluster
from laggard.resilience.nodes.ranks import Ranks
from laggard.resilience.nodes.waiting import wait_for
from laggard.resilience.record.account import Account
from laggard.resilience.record.entries import FailureFound, LaunchEndCause
from laggard.telemetry.course import Gap

# Until new processes have run the program up to its first step, unless that took the ranks longer in the beginning; and
# then until all ranks have connected.
READY_S = 30.0
Moved = Literal["moved", "not begun", "stopped"]
"""What became of ranks that were to go on elsewhere: in the last case the others wait for them in vain."""
FORM_S = 20.0
# Until ranks that train have ended two steps.
PAUSE_S = 120.0
HOUR_S = 3600.0


class Replacing:
    """Knows what the ranks of the current launch have said, and replaces those that are lost."""

    def __init__(
        self,
        settings: Settings,
        cluster: Cluster,
        launches: Launches,
        records: Records,
        account: Account,
        requests: RequestReader,
    ) -> None:
        self._settings = settings
        self._cluster = cluster
        self._launches = launches
        self._records = records
        self._account = account
        self._requests, self._changed = requests.waiting, requests.changed
        self._launch = -1  # the launch of what the ranks have said
        self._hung_in = -1  # the last one in which a rank was killed because it hung
        self._offered: set[int] = set()
        self._why_not = ""
        self._ready: dict[int, Ready] = {}
        self._start_s = 0.0  # how long it took the ranks to offer that they stay
        self._failed_at: int | None = None  # the step at which ranks were replaced last, if it may end them again
        self._replaced: set[int] = set()  # the ranks that were
        self._replaced_s: list[float] = []  # when ranks were replaced
        self._no_spare: set[str] = set()  # the nodes on which no process can stand by
        self._told_spare = ""  # the node of which the user knows that processes stand by there now
        self._told_imports = Imports(-1, ())  # what they were told to import
        self._asked_for_imports = False

    @property
    def all_can_stay(self) -> bool:
        """Whether all ranks of the current launch could go on if others were lost."""
        program = self._launches.program
        is_known = self._launch == self._launches.number and not self._why_not
        return is_known and isinstance(program, Ranks) and len(self._offered) == program.size

    def take(self, requests: Sequence[Request]) -> None:
        """Take what ranks of the current launch have said."""
        if self._launch != self._launches.number:
            self._launch, self._why_not = self._launches.number, ""
            self._offered.clear()
            self._ready.clear()
        for body in (body for request in requests if request.launch == self._launch for body in request.body):
            match record_of(Message, body).said:
                case Offer(rank, ""):
                    self._offered.add(rank)
                    if rank not in self._ready:  # it has not adopted the launch, but started in it
                        self._start_s = max(self._start_s, self._launches.ran_s)
                case Offer(_, why_not):
                    self._why_not = why_not
                case Ready() as ready:
                    self._ready[ready.rank] = ready
                case StandsBy() as said if isinstance(self._launches.program, Ranks):
                    self._launches.program.stands_by(said)

    def keep_spare(self, roster: Roster) -> None:
        """Have processes stand by on the first node of the reserve while all ranks could stay."""
        program, number = self._launches.program, self._launches.number
        if not (isinstance(program, Ranks) and self.all_can_stay):
            return
        if not self._asked_for_imports and (first := self._cluster.nodes.get(roster.active[0])) is not None:
            self._asked_for_imports = True
            first.warm.ask_for_imports()
        node = self._cluster.nodes.get(next(iter(roster.reserve), ""))
        if node is not None and not node.warm.is_ready:
            return
        if node is not None and (why := program.why_no_spare(number)):
            self._no_spare.add(node.record.hostname)
            self._account.tell("notice", wording.no_spare(node.record.hostname, why), "bold yellow")
        program.stand_by_on(None if node is None or node.record.hostname in self._no_spare else node, number)
        if (spare := program.spare_node) and spare != self._told_spare:
            self._account.tell("warm", wording.spare(spare))
        self._told_spare = spare
        if node is not None and (imports := Imports(number, node.warm.loaded)) != self._told_imports:
            self._records.publish(imports)
            self._told_imports = imports

    def with_spare(self, status: JobStatus) -> JobStatus:
        """Return the status in which processes that stand by take the places of ranks that have ended."""
        program = self._launches.program
        if not isinstance(program, Ranks):
            return status
        self._take_requests()  # some may stand by since a moment ago
        ends = program.lost()
        after = with_spare(status, {end.host for end in ends}, program.spare_node)
        leaving = program.on(moves(status, after, self._settings.devices))
        lost = dict.fromkeys(leaving) | {end.place: end.exit_code for end in ends}
        return after if leaving and self._obstacle(program, lost) is None else status

    def replace(self, roster: Roster, devices: Devices, moved: Mapping[str, str]) -> Failure | Sequence[ProcessEnd]:
        """Replace the ranks that have ended, and all others of the nodes of which the ranks move to other nodes.

        Returns
        -------
        Failure or list of ProcessEnd
            Why they failed, if they are replaced; otherwise how they have ended.
        """
        program = self._launches.program
        if not isinstance(program, Ranks):
            return ()
        began_s, all_ends, n_tries = time.monotonic(), list[ProcessEnd](), 0
        while True:
            ends = program.lost()
            lost = {end.place: end.exit_code for end in ends}
            all_ends += ends
            found: Formation | Obstacle | None = self._obstacle(program, lost, n_tries)
            if found is None:
                n_tries += 1
                # A step that ends the same rank twice, or raises twice, would do so again.
                if not any(rank in self._replaced or (code or 0) > 0 for rank, code in lost.items()):
                    self._failed_at = None
                leaving = program.on(moved)
                for rank in leaving:  # their peers wait for them
                    program.kill_rank(rank)
                found = self._try({*leaving, *lost}, program, roster, devices, moved)
            if found != "lost again":
                break
        if not isinstance(found, Formation):
            self._give_up(found, program)
            return all_ends if n_tries else ()
        self._failed_at, self._replaced = found.step, {*lost}
        failure = explain(by_one_clock(all_ends, self._cluster.clocks()), {})
        self._account.take_note(FailureFound(failure))
        change = (Change(set_aside=tuple(moved), came=tuple(moved.values())),) if moved else ()
        why = (failure, *change, Fact("in place"))
        self._launches.finish_replacing(why, "failure", program, roster, Gap(0.0, 0.0, self._replaced_s[-1] - began_s))
        told = f"{decision_wording.reason(why)}; all go on from step {found.step}"
        self._account.tell("replaced", told, "bold yellow")
        return failure

    def move(
        self, moves: Mapping[str, str], roster: Roster, devices: Devices, why: Reason, cause: LaunchEndCause
    ) -> Moved:
        """Have ranks of some nodes go on elsewhere, and the others with their processes.

        If these nodes are there, all ranks stop before a step for it.
        """
        program = self._launches.program
        if not isinstance(program, Ranks):
            return "not begun"
        began_s, is_planned = time.monotonic(), moves.keys() <= self._cluster.nodes.keys()
        moving = program.on(moves)
        lost = {end.place: end.exit_code for end in program.lost()} | dict.fromkeys(moving)
        why_not = self._obstacle(program, lost)
        if why_not is None and is_planned:
            self._ready.clear()  # of those that were to take places before
            self._begin_new(moving, program, self._launches.number + 1, moves)
            why_not = self._await_ready(program, len(moving))
        if why_not is not None:
            self._give_up(why_not, program)
            return "not begun"
        found: Formation | Obstacle | None = self._stop_before_a_step(moving, program) if is_planned else None
        began_s = time.monotonic() if is_planned else began_s
        self._failed_at = None
        if found is None:
            found = self._try(lost, program, roster, devices, moves)
        if not isinstance(found, Formation):
            self._give_up(found, program)
            return "stopped"
        why = (*why, Fact("moved in place", number=found.step))
        self._account.tell("moved", decision_wording.reason(why), "bold yellow")
        self._launches.finish_replacing(why, cause, program, roster, Gap(0.0, 0.0, self._replaced_s[-1] - began_s))
        return "moved"

    def _begin_new(self, ranks: Collection[int], program: Ranks, joins_in: int, moves: Mapping[str, str]) -> None:
        nodes = {out: self._cluster.nodes[into] for out, into in moves.items()}
        for placed in program.begin_new(ranks, self._launches.number, joins_in, nodes):
            self._records.publish(placed)

    def _stop_before_a_step(self, ranks: Sequence[int], program: Ranks) -> Obstacle | None:
        """Have all ranks stop before a step, and some hand over what only they have; return what came instead."""
        self._ready.clear()  # of those that are to take the places
        self._records.publish(Leaving(self._launches.number, tuple(ranks)))
        return self._await(program, lambda: len(self._ready) == program.size, "not paused", PAUSE_S)

    def end_hung(self, hang: ProgramHung) -> bool:
        """Kill the rank that all others wait for, if it can be replaced; return whether it was killed."""
        program, rank = self._launches.program, hung_rank(hang)
        if rank is None or not isinstance(program, Ranks) or self._hung_in == self._launches.number:
            return False
        if self._obstacle(program, {rank: None}) is not None:
            return False
        self._hung_in = self._launches.number
        told = f"the program hangs: {decision_wording.hang(hang)}; it is killed, and replaced"
        self._account.tell("notice", told, "bold yellow")
        program.kill_rank(rank)
        return True

    def _obstacle(self, program: Ranks, lost: Mapping[int, int | None], n_tries: int = 0) -> Obstacle | None:
        """Return what speaks against replacing these ranks, each with its exit code."""
        self._take_requests()
        settings, hour_ago_s = self._settings, time.monotonic() - HOUR_S
        loss = Loss(
            program.size,
            lost,
            frozenset(self._offered) if n_tries == 0 else frozenset(range(program.size)),
            self._why_not,
            n_tries,
            sum(each > hour_ago_s for each in self._replaced_s),
            settings.max_restarts_per_hour if settings.resilient and settings.on_failure != "end" else 0,
        )
        return obstacle(loss)

    def _try(
        self, ranks: Collection[int], program: Ranks, roster: Roster, devices: Devices, moves: Mapping[str, str]
    ) -> Formation | Obstacle:
        """Have new processes take the places of these ranks; return what all go on from, or what came instead."""
        # By ranks that leave; or before others were lost meanwhile, since when no step has begun.
        handed_over = [each for said in self._ready.values() for each in said.handed_over]
        self._launches.begin_replacing(ranks, roster, devices)
        if not program.has_new:
            self._begin_new(ranks, program, self._launches.number, moves)
        program.take_over()
        if found := self._await_ready(program, program.size):
            return found
        form = formation(self._launches.number, self._ready, self._failed_at, handed_over)
        if not isinstance(form, Formation):
            return form
        self._records.publish(form)
        if found := self._await(program, lambda: self.all_can_stay, "not formed", FORM_S):
            return found
        self._ready.clear()
        self._replaced_s.append(time.monotonic())
        return form

    def _give_up(self, found: Obstacle, program: Ranks) -> None:
        program.drop_new()
        if found != "not asked for":
            self._account.tell("notice", wording.not_in_place(found, self._why_not), "bold yellow")

    def _await_ready(self, program: Ranks, n_ranks: int) -> Obstacle | None:
        ready_s = max(READY_S, 2 * self._start_s)
        return self._await(program, lambda: len(self._ready) == n_ranks, "not ready", ready_s)

    def _await(self, program: Ranks, done: Callable[[], bool], late: Obstacle, deadline_s: float) -> Obstacle | None:
        """Wait until the ranks have said something; return what came instead."""
        found: Obstacle | None = None

        def is_over() -> bool:
            nonlocal found
            self._take_requests()
            found = None if done() else self._trouble(program, late)
            return done() or found is not None

        return found if wait_for(self._changed, is_over, deadline_s) else late

    def _trouble(self, program: Ranks, late: Obstacle) -> Obstacle | None:
        if self._cluster.lost():
            return "node lost"
        if program.has_lost_new:
            return "new process failed"
        # One that has ended, even well, will never be ready.
        if program.exit_code is not None or (late == "not ready" and program.any_ended):
            return "lost again" if program.exit_code else "has ended"
        return None

    def _take_requests(self) -> None:
        """Take what ranks of the current launch have said; all other requests wait."""
        with self._changed:  # which whoever adds one holds
            found = [request for request in self._requests if request.kind == "member"]
            for request in found:
                self._requests.remove(request)
        self.take(found)
