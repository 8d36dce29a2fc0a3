"""Replacing ranks while the others keep their processes, in the order that keeps the invariants.

The launch number is raised: from here on nothing that is not in the new launch can write. Then it is published who is
replaced, and the others adopt the new launch. Once each rank has said so, all connect, and only then what is left of
the old launch is ended. Whatever does not come by its deadline, a relaunch takes its place.

Ranks of a node that the job goes on without train until others stand by on the node that takes its place. Then all stop
before the same step, and the rest is as above.
"""

from __future__ import annotations

import signal
import time
from collections import deque
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
from laggard.resilience.decision.in_place import (
    Loss,
    LostRank,
    Obstacle,
    formation,
    hung_rank,
    moves,
    obstacle,
    with_spare,
)
from laggard.resilience.decision.origin import ProcessEnd, by_one_clock
from laggard.resilience.decision.reasons import Change, Fact
from laggard.resilience.decision.roster import Roster
from laggard.resilience.nodes.cluster import Cluster
from laggard.resilience.nodes.node import Node
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
        self._failed_at: int | None = None  # the step at which ranks were replaced last
        self._replaced: set[int] = set()  # the ranks that were
        self._replaced_s: deque[float] = deque()
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

    def take(self, request: Request) -> None:
        """Take what a rank of the current launch has said."""
        self._of_launch(request.launch)
        for body in request.body:
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
        self._of_launch(self._launches.number)
        self._take_requests()
        lost, ends = program.lost(-1)
        if obstacle(self._loss(program, lost, 0)) is not None:
            return status
        after = with_spare(status, {end.host for end in ends}, program.spare_node)
        leaving = program.on(moves(status, after, self._settings.devices))
        is_possible = obstacle(self._loss(program, [LostRank(rank, -signal.SIGKILL) for rank in leaving], 0)) is None
        return after if leaving and is_possible else status

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
        self._of_launch(self._launches.number)
        began_s, all_ends, n_tries = time.monotonic(), list[ProcessEnd](), 0
        while True:
            self._take_requests()
            lost, ends = program.lost(self._launches.number if n_tries else -1)
            all_ends += ends
            loss = self._loss(program, lost, n_tries)
            found: Formation | Obstacle | None = obstacle(loss)
            if found is None:
                n_tries += 1
                # A step that ends the same rank twice, or raises twice, would do so again.
                is_alike = any(each.rank in self._replaced or each.exit_code > 0 for each in lost)
                leaving = program.on(moved)
                for rank in leaving:  # their peers wait for them
                    program.kill_rank(rank)
                ranks = {*leaving, *(each.rank for each in lost)}
                nodes = {out: self._cluster.nodes[into] for out, into in moved.items()}
                found = self._try(ranks, program, roster, devices, nodes, self._failed_at if is_alike else None)
            if isinstance(found, Formation):
                self._failed_at = found.step
                self._replaced = {each.rank for each in lost}
                return self._finish(all_ends, program, roster, moved, began_s)
            if found != "lost again":
                return self._give_up(found, all_ends if n_tries else ())

    def move(
        self, moves: Mapping[str, str], roster: Roster, devices: Devices, why: Reason, cause: LaunchEndCause
    ) -> Moved:
        """Have ranks of some nodes go on elsewhere, and the others with their processes.

        If these nodes are there, all ranks stop before a step for it.
        """
        program = self._launches.program
        if not moves or not isinstance(program, Ranks):
            return "not begun"
        self._of_launch(self._launches.number)
        self._take_requests()
        began_s, is_planned = time.monotonic(), moves.keys() <= self._cluster.nodes.keys()
        moving, (ended, _) = program.on(moves), program.lost(-1)
        lost = [
            *(LostRank(rank, -signal.SIGKILL) for rank in moving),
            *(each for each in ended if each.rank not in moving),
        ]
        nodes = {out: self._cluster.nodes[into] for out, into in moves.items()}
        why_not = obstacle(self._loss(program, lost, 0))
        if why_not is None and is_planned:
            why_not = self._stand_by(moving, nodes, program)
        if why_not is not None:
            program.drop_new()
            self._give_up(why_not, ())
            return "not begun"
        found: Formation | Obstacle | None = self._stop_before_a_step(moving, program) if is_planned else None
        if is_planned:
            began_s = time.monotonic()
        if found is None:
            found = self._try([each.rank for each in lost], program, roster, devices, nodes)
        if not isinstance(found, Formation):
            program.drop_new()
            self._give_up(found, ())
            return "stopped"
        self._replaced_s.append(time.monotonic())
        gap = Gap(0.0, 0.0, self._replaced_s[-1] - began_s)
        why = (*why, Fact("moved in place", number=found.step))
        self._account.tell("moved", decision_wording.reason(why), "bold yellow")
        self._launches.finish_replacing(why, cause, program, roster, gap)
        return "moved"

    def _stand_by(self, ranks: Sequence[int], nodes: Mapping[str, Node], program: Ranks) -> Obstacle | None:
        """Have new processes stand by for ranks that leave; return what came instead."""
        number = self._launches.number
        self._ready.clear()  # of those that were to take places before
        self._begin_new(ranks, program, number + 1, nodes)
        ready_s = max(READY_S, 2 * self._start_s)
        return self._await(program, lambda: len(self._ready) == len(ranks), "not ready", ready_s)

    def _begin_new(self, ranks: Collection[int], program: Ranks, joins_in: int, nodes: Mapping[str, Node]) -> None:
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
        if rank is None or not isinstance(program, Ranks) or self._launch != self._launches.number:
            return False
        loss = self._loss(program, [LostRank(rank, -signal.SIGKILL)], 0)
        if self._hung_in == self._launch or obstacle(loss) is not None:
            return False
        self._hung_in = self._launch
        told = f"the program hangs: {decision_wording.hang(hang)}; it is killed, and replaced"
        self._account.tell("notice", told, "bold yellow")
        program.kill_rank(rank)
        return True

    def _loss(self, program: Ranks, lost: Sequence[LostRank], n_tries: int) -> Loss:
        settings, now_s = self._settings, time.monotonic()
        while self._replaced_s and self._replaced_s[0] < now_s - HOUR_S:
            self._replaced_s.popleft()
        return Loss(
            program.size,
            tuple(lost),
            frozenset(self._offered) if n_tries == 0 else frozenset(range(program.size)),
            self._why_not,
            n_tries,
            len(self._replaced_s),
            settings.max_restarts_per_hour if settings.resilient and settings.on_failure != "end" else 0,
        )

    def _try(
        self,
        ranks: Collection[int],
        program: Ranks,
        roster: Roster,
        devices: Devices,
        nodes: Mapping[str, Node],
        failed_at: int | None = None,
    ) -> Formation | Obstacle:
        """Have new processes take the places of these ranks; return what all go on from, or what came instead."""
        # By ranks that leave; or before others were lost meanwhile, since when no step has begun.
        handed_over = [each for said in self._ready.values() for each in said.handed_over]
        self._launches.begin_replacing(ranks, roster, devices)
        number = self._launches.number
        self._of_launch(number)
        if not program.has_new:
            self._begin_new(ranks, program, number, nodes)
        program.take_over()
        if found := self._await(
            program, lambda: len(self._ready) == program.size, "not ready", max(READY_S, 2 * self._start_s)
        ):
            return found
        form = formation(number, self._ready, failed_at, handed_over)
        if not isinstance(form, Formation):
            return form
        self._records.publish(form)
        if found := self._await(program, lambda: self.all_can_stay, "not formed", FORM_S):
            return found
        self._ready.clear()
        return form

    def _finish(
        self, ends: Sequence[ProcessEnd], program: Ranks, roster: Roster, moved: Mapping[str, str], began_s: float
    ) -> Failure:
        formed_s = time.monotonic()
        self._replaced_s.append(formed_s)
        failure = explain(by_one_clock(ends, self._cluster.clocks()), {})
        self._account.take_note(FailureFound(failure))
        gap = Gap(0.0, 0.0, formed_s - began_s)
        change = (Change(set_aside=tuple(moved), came=tuple(moved.values())),) if moved else ()
        why = (failure, *change, Fact("in place"))
        self._launches.finish_replacing(why, "failure", program, roster, gap)
        self._account.tell(
            "replaced", f"{decision_wording.reason(why)}; all go on from step {self._failed_at}", "bold yellow"
        )
        return failure

    def _give_up(self, found: Obstacle, ends: Sequence[ProcessEnd]) -> Sequence[ProcessEnd]:
        if found != "not asked for":
            self._account.tell("notice", wording.not_in_place(found, self._why_not), "bold yellow")
        return ends

    def _await(self, program: Ranks, done: Callable[[], bool], late: Obstacle, deadline_s: float) -> Obstacle | None:
        """Wait until the ranks have said something; return what came instead."""
        until_s = time.monotonic() + deadline_s

        def lacks_one() -> bool:  # one that has ended, even well, will never be ready
            return late == "not ready" and program.any_ended

        def has_news() -> bool:
            has_request = any(request.kind == "member" for request in self._requests)
            has_ended = program.exit_code is not None or program.has_lost_new or lacks_one()
            return has_request or has_ended or bool(self._cluster.lost())

        while not done():
            if not wait_for(self._changed, has_news, until_s - time.monotonic()):
                return late
            self._take_requests()
            if self._cluster.lost():
                return "node lost"
            if program.has_lost_new:
                return "new process failed"
            if program.exit_code is not None or lacks_one():
                return "lost again" if program.exit_code else "has ended"
        return None

    def _take_requests(self) -> None:
        """Take what ranks of the current launch have said; all other requests wait."""
        with self._changed:  # which whoever adds one holds
            found = [request for request in self._requests if request.kind == "member"]
            for request in found:
                self._requests.remove(request)
        for request in found:
            if request.launch == self._launches.number:
                self.take(request)

    def _of_launch(self, launch: int) -> None:
        if launch != self._launch:
            self._launch = launch
            self._why_not = ""
            self._offered.clear()
            self._ready.clear()
