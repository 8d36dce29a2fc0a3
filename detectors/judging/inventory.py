"""Inventory: the GPUs that each node had, so that one that is gone is missed. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TypedDict

from laggard.collectors.boards import Board, Boards
from laggard.collectors.device import DeviceId
from laggard.collectors.device_check import ALL_DEVICES, DeviceCheck


class KnownBoard(TypedDict):
    """What is remembered of a board: its name, and the most NVLinks that were active."""

    name: str
    links: int


Inventory = Mapping[str, Mapping[str, KnownBoard]]
"""By host and UUID."""


def inventoried(inventory: Inventory, boards: Mapping[str, Boards]) -> dict[str, dict[str, KnownBoard]]:
    """Return the inventory with the boards that were found now, by host; one that has moved is its new host's alone."""
    # A board that is gone stays in it, so that the next visit misses it as well.
    now_at = {board.uuid: host for host, listed in boards.items() for board in listed.found if board.uuid}
    kept = {
        host: {uuid: known for uuid, known in known_boards.items() if now_at.get(uuid, host) == host}
        for host, known_boards in inventory.items()
    }
    for host, listed in boards.items():
        for board in listed.found:
            if board.uuid:
                links = max(board.n_links or 0, _links_before(board, inventory.get(host, {})))
                kept.setdefault(host, {})[board.uuid] = {"name": board.name, "links": links}
    return {host: known_boards for host, known_boards in kept.items() if known_boards}


def with_faults(
    checks: Mapping[DeviceId, DeviceCheck], boards: Mapping[str, Boards], inventory: Inventory, expected: int = 0
) -> dict[DeviceId, DeviceCheck]:
    """Return the checks with what the driver and the inventory say is wrong."""
    # What concerns no device that was checked stands in a check of all devices of its host.
    found = dict(checks)
    for host, listed in boards.items():
        here = {device: check for device, check in checks.items() if device[0] == host and device[1] != ALL_DEVICES}
        has_said_why = (host, ALL_DEVICES) in checks
        machine = [] if has_said_why else _too_few(len(here), expected)
        machine += _gone(listed, inventory.get(host, {}))
        for board in listed.found:
            faults = _faults_of(board, inventory.get(host, {}))
            of_board = [device for device, check in here.items() if board.uuid and check.board == board.uuid]
            for device in of_board:
                found[device] = replace(found[device], faults=(*faults, *found[device].faults))
            machine += [] if of_board else [f"{board.name}: {fault}" for fault in faults]
        if machine or listed.failure:
            whole = found.pop((host, ALL_DEVICES), DeviceCheck(ALL_DEVICES))
            failure = "; ".join(reason for reason in (whole.failure, listed.failure) if reason)
            found = {(host, ALL_DEVICES): replace(whole, faults=tuple(machine), failure=failure), **found}
    return found


def _too_few(present: int, expected: int) -> list[str]:
    return [f"{present} of {expected} expected devices are there"] if present < expected else []


def _gone(listed: Boards, known: Mapping[str, KnownBoard]) -> list[str]:
    if not listed.is_all:
        return []
    present = {board.uuid for board in listed.found}
    return [
        f"{uuid} ({board['name']}) was here at an earlier check and is gone; "
        "if it was taken out on purpose, remove the file in which it is remembered"
        for uuid, board in known.items()
        if uuid not in present
    ]


def _faults_of(board: Board, known: Mapping[str, KnownBoard]) -> tuple[str, ...]:
    before = _links_before(board, known)
    if board.n_links is None or board.n_links >= before:
        return board.faults
    lost = f"NVLink: {board.n_links} links are active, {before} were at an earlier check"
    return (*board.faults, lost)


def _links_before(board: Board, known: Mapping[str, KnownBoard]) -> int:
    return known[board.uuid]["links"] if board.uuid in known else 0
