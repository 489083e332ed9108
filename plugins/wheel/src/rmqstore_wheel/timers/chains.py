"""Chains of units in the timer log: each unit names the one before it, back to the first of its slot.

Many chains are walked side by side, a unit of each at a time; few or long ones are read in runs, as the units of one call lie one behind
the other. A unit must be followed by an older one, not before the chain's first, so a walk always ends.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from rmqstore.errors import CorruptStoreError
from rmqstore_wheel.files.units import UnitLog
from rmqstore_wheel.formats.binary_columns import Ints

_SIDE_BY_SIDE: Final = 8
_RUN_UNITS: Final = 4096


def walk(units: UnitLog, lasts: Ints, firsts: Ints, owners: Ints) -> tuple[Ints, Ints]:
    """Return (units by number, owner of each) of some chains, in no order.

    Args:
        lasts, firsts: where the newest and the oldest unit of each chain lies.
        owners: whom each chain belongs to.

    Raises:
        CorruptStoreError: a chain does not lead from newer to older units.
    """
    found: list[Ints] = []
    of_owner: list[Ints] = []
    current, firsts = units.numbers(lasts), units.numbers(firsts)
    hops = 0
    while len(current):
        if len(current) < _SIDE_BY_SIDE or hops >= _RUN_UNITS:
            for at, (number, first) in enumerate(zip(current.tolist(), firsts.tolist(), strict=True)):
                run = current[at : at + 1] if number == first else _walk_one(units, number, first)
                found.append(run)
                of_owner.append(owners[at : at + 1].repeat(len(run)))
            break
        found.append(current)
        of_owner.append(owners)
        going = current != firsts
        current, firsts, owners = current[going], firsts[going], owners[going]
        if len(current):
            before = units.numbers(units.gather(current)["previous"].astype(np.int64))
            _check(units, before, current, firsts)
            current = before
        hops += 1
    if len(found) < 2:
        return (found[0], of_owner[0]) if found else (current, owners)
    return np.concatenate(found), np.concatenate(of_owner)


def _walk_one(units: UnitLog, number: int, first: int) -> Ints:
    """Return the units of one chain from ``number`` back to ``first``, read in runs."""
    found: list[Ints] = []
    step = 16
    while True:
        begin = max(number - step + 1, first, units.first)
        read = units.read(begin, number - begin + 1)
        expected = units.positions(np.arange(begin - 1, number))
        breaks = np.flatnonzero(read["previous"] != expected)
        start = begin if not len(breaks) else begin + int(breaks[-1])
        found.append(np.arange(start, number + 1))
        if start <= first:
            return np.concatenate(found)
        if len(breaks):
            before = units.numbers(read["previous"][start - begin : start - begin + 1].astype(np.int64))
            _check(units, before, np.array([start]), np.array([first]))
            number, step = int(before[0]), 16
        else:
            number, step = start - 1, min(4 * step, 65_536)


def _check(units: UnitLog, before: Ints, current: Ints, firsts: Ints) -> None:
    wrong = (before >= current) | (before < firsts)
    if wrong.any():
        at = units.position(int(current[wrong.argmax()]))
        path = str(units.chain.path_of(at))
        raise CorruptStoreError(f"{path}: the unit at {at} is not followed by an older one of its slot", file=path, offset=at)
