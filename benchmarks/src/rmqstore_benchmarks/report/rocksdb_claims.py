"""What is said for RocksDB and against it, and what decided against it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from rmqstore_benchmarks.report import quantities
from rmqstore_benchmarks.report.aggregates import DRAIN, CellPhase, Spread
from rmqstore_benchmarks.report.claims import RATIO_RULE, Claim, Judgement, Verdict, not_measured, verdict_of
from rmqstore_benchmarks.report.comparing import (
    COPYING_WHEEL,
    ROCKSDB,
    SEPARATED,
    WHEEL,
    Comparison,
    Design,
    Side,
    comparisons,
    design_of,
    place,
    told,
    where,
)
from rmqstore_benchmarks.report.source_size import package_lines

SMALLER: Final = 2 / 3
"""Code is simpler from this share of the other's lines down."""

ROLL_NONE: Final = 0.05
"""Bytes written over bytes kept below which rolling writes nothing to speak of."""

ROLL_MUCH: Final = 1.0
"""Bytes written over bytes kept from which rolling writes as much as if it wrote the messages anew."""

LARGE_BODY_BYTES: Final = 4096
"""A value is large from here on."""

FOR: Final = "for RocksDB"
AGAINST: Final = "against RocksDB"
DECIDED: Final = "decided against RocksDB"


def _simple_flow(phases: Sequence[CellPhase]) -> Judgement:
    ordered, wheel = package_lines("rmqstore.ordered", "rmqstore_rocksdb"), package_lines("rmqstore_wheel")
    if not ordered or not wheel:
        return not_measured("both engines installed beside the report: their source is counted, no run can show this")
    share = ordered / wheel
    verdict = Verdict.CONFIRMED if share <= SMALLER else Verdict.REFUTED if share >= 1 else Verdict.DEPENDS
    return Judgement(
        verdict,
        f"{ordered:,} lines of code, the layer that it shares with LMDB included, against the wheel's {wheel:,} ({share * 100:.0f} %); "
        "lines stand in for simplicity here, and the wheel's are also those of RocketMQ's file formats",
    )


def _no_rolling(phases: Sequence[CellPhase]) -> Judgement:
    written = _rolled(phases)
    if not written:
        return not_measured("the phase roll of RocksDB and of a wheel on one cell")
    kept, by_design = max(written, key=lambda each: each[0])
    rocksdb = by_design[ROCKSDB]
    wheels = {name: value for name, value in by_design.items() if name != ROCKSDB}
    parts = [f"RocksDB {quantities.digits(rocksdb)}"]
    parts += [f"the wheel by {kind} {quantities.digits(value)}" for (_, kind), value in wheels.items()]
    much = [value >= ROLL_MUCH for value in wheels.values()]
    if rocksdb > ROLL_NONE or not any(much):
        verdict = Verdict.REFUTED
    else:
        verdict = Verdict.CONFIRMED if all(much) else Verdict.DEPENDS
    return Judgement(verdict, f"bytes that the process wrote while rolling, over {quantities.size(kept)} kept: {', '.join(parts)}")


def _rolled(phases: Sequence[CellPhase]) -> list[tuple[float, dict[Design, float]]]:
    """Return for each cell that RocksDB and a wheel rolled on the user bytes kept, and by design the bytes written over them."""
    cells: dict[tuple[object, ...], dict[Design, CellPhase]] = defaultdict(dict)
    for design in (ROCKSDB, COPYING_WHEEL, WHEEL):
        for each in _of(phases, "roll", design):
            if {"wchar_per_live_byte", "live_bytes"} <= each.metrics.keys():
                cells[place(each.cell)][design] = each
    return [
        (of_cell[ROCKSDB].metrics["live_bytes"].median, {key: each.metrics["wchar_per_live_byte"].median for key, each in of_cell.items()})
        for of_cell in cells.values()
        if ROCKSDB in of_cell and len(of_cell) > 1
    ]


def _of(phases: Sequence[CellPhase], phase: str, design: Design) -> list[CellPhase]:
    return [each for each in phases if each.phase == phase and design_of(each.cell) == design]


def is_short_of_memory(each: CellPhase) -> bool:
    """Return whether a cold drain had less memory than messages, so that what is read twice comes from the disk twice.

    Of several shards none counts, since each sees what all read.
    """
    limit = each.metrics.get("memory_limit_per_user_byte")
    return limit is not None and limit.median < 1 and each.cell.shards == 1


def _less_pollution(phases: Sequence[CellPhase]) -> Judgement:
    cold = [each for each in phases if each.phase == "cold_drain" and is_short_of_memory(each)]
    found = comparisons(cold, "device_read_per_user_byte", WHEEL, ROCKSDB)
    if not found:
        return not_measured("the phase cold_drain of both with a memory limit below the size of the messages")
    worst = max(found, key=lambda each: each.ratio)
    return Judgement(
        verdict_of(found),
        f"with too little memory the wheel reads {told(found)} as much from the device as RocksDB; where it differs most, "
        f"{quantities.digits(worst.first.median)} against {quantities.digits(worst.second.median)} bytes a user byte",
    )


def _sorting(phases: Sequence[CellPhase]) -> Judgement:
    found = comparisons([each for each in phases if each.phase == "schedule"], "rate", WHEEL, ROCKSDB)
    if not found:
        return not_measured("the phase schedule of the wheel and of RocksDB")
    cpu = comparisons([each for each in phases if each.phase == "schedule"], "cpu_us_per_message", ROCKSDB, WHEEL)
    end = f"; of CPU time RocksDB takes {told(cpu)} as much" if cpu else ""
    return Judgement(verdict_of(found), f"the wheel schedules {told(found)} as fast; it is clearly faster {where(found, Side.FOR)}{end}")


def _compaction(phases: Sequence[CellPhase]) -> Judgement:
    writing = [each for each in phases if each.phase in ("fill", "schedule", "mixed")]
    known = [each for each in writing if design_of(each.cell) == ROCKSDB and "compaction_per_user_byte" in each.metrics]
    if not known:
        return not_measured("compaction bytes of RocksDB in the phases fill, schedule or mixed")
    compacted = [each for each in known if each.metrics["compaction_per_user_byte"].median > 0]
    if not compacted:
        return not_measured("more data: no compaction ran in fill, schedule or mixed")
    most = max(each.metrics["compaction_per_user_byte"].median for each in compacted)
    ran = {(each.cell.cell_id, each.phase) for each in compacted}
    found = comparisons(writing, "cpu_us_per_message", ROCKSDB, WHEEL, lambda each: (each.cell.cell_id, each.phase) in ran)
    if not found:
        return not_measured("the wheel's CPU time on a cell where RocksDB compacted")
    return Judgement(
        verdict_of(found),
        f"where compaction ran, at most {quantities.digits(most)} bytes a user byte, RocksDB takes {told(found)} the wheel's CPU time a "
        "message; that is all of its CPU time, of which compaction is a part",
    )


def _retrieval(phases: Sequence[CellPhase]) -> Judgement:
    found = comparisons([each for each in phases if each.phase == "hand_over"], "cpu_us_per_message", ROCKSDB, WHEEL)
    if not found:
        return not_measured("CPU time in the phase hand_over of the wheel and of RocksDB")
    return Judgement(
        verdict_of(found),
        f"handing over, RocksDB takes {told(found)} the wheel's CPU time a message; clearly more {where(found, Side.FOR)}",
    )


def _slower_as_it_grows(phases: Sequence[CellPhase]) -> Judgement:
    found = _growth(phases, ROCKSDB)
    if not found:
        return not_measured(f"the phase schedule of RocksDB at two backlogs with bodies of {quantities.size(LARGE_BODY_BYTES)} or more")
    worst = max(found, key=lambda each: each.ratio)
    wheel = _growth(phases, WHEEL)
    beside = f"; the wheel's changes by {told(wheel)} likewise" if wheel else ""
    return Judgement(
        verdict_of(found),
        f"with large values its rate at the smallest backlog is {told(found)} that at the largest; at most, it falls from "
        f"{quantities.rate(worst.first.median)} to {quantities.rate(worst.second.median)}{beside}",
    )


def _growth(phases: Sequence[CellPhase], design: Design) -> list[Comparison]:
    """Return for each large body and setting the schedule rate at the smallest backlog against that at the largest."""
    series: dict[tuple[object, ...], list[tuple[int, CellPhase, Spread]]] = defaultdict(list)
    for each in _of(phases, "schedule", design):
        cell = each.cell
        if cell.body_bytes >= LARGE_BODY_BYTES and "rate" in each.metrics:
            key = (cell.variant, cell.workload, cell.body_bytes, cell.durability, cell.shards)
            series[key].append((cell.backlog, each, each.metrics["rate"]))
    found = []
    for points in series.values():
        points.sort(key=lambda point: point[0])
        if points[0][0] < points[-1][0]:
            found.append(Comparison(points[-1][1].cell, points[0][2], points[-1][2]))
    return found


def _separation(phases: Sequence[CellPhase]) -> Judgement:
    reading = [each for each in phases if each.phase in (DRAIN, "cold_drain")]
    found = comparisons(reading, "rate", ROCKSDB, SEPARATED)
    if not found:
        return not_measured("RocksDB with values inline and separated, in hand_over and pop_ack or in cold_drain")
    writing = comparisons([each for each in phases if each.phase == "schedule"], "rate", SEPARATED, ROCKSDB)
    beside = f"; in turn it schedules {told(writing)} as fast" if writing else ""
    return Judgement(
        verdict_of(found), f"inline values drain {told(found)} as fast as separated ones; clearly faster {where(found, Side.FOR)}{beside}"
    )


ROCKSDB_CLAIMS: Final = (
    Claim(
        "simple flow",
        FOR,
        "The flow is rather simple: key by time, scan what is due.",
        f"lines of code of the key-ordered engine over the wheel's: at most {SMALLER:.0%} confirms, 100 % or more refutes, else it "
        f"depends; no "
        "matter of throughput",
        _simple_flow,
    ),
    Claim(
        "no rolling",
        FOR,
        "It avoids the write amplification that comes from rolling messages.",
        f"bytes written in the phase roll over user bytes kept, on the cell that keeps most: RocksDB at most {ROLL_NONE:g} and every "
        f"wheel {ROLL_MUCH:g} or more "
        f"confirms; "
        f"RocksDB at most {ROLL_NONE:g} and only some wheel {ROLL_MUCH:g} or more: it depends; else refuted",
        _no_rolling,
    ),
    Claim(
        "less page-cache pollution",
        FOR,
        "To a degree it avoids polluting the page cache.",
        f"bytes read from the device a user byte, drained with less memory than messages, wheel over RocksDB: {RATIO_RULE}",
        _less_pollution,
    ),
    Claim(
        "sorting on write",
        AGAINST,
        "Writing has to sort, which takes extra time.",
        f"schedule rate, wheel over RocksDB: {RATIO_RULE}",
        _sorting,
    ),
    Claim(
        "compaction costs CPU",
        AGAINST,
        "Compacting the keys may take extra CPU.",
        f"CPU time a message where compaction ran, RocksDB over wheel: {RATIO_RULE}",
        _compaction,
    ),
    Claim(
        "retrieval costs compute",
        AGAINST,
        "Finding the messages takes much computing.",
        f"CPU time a message handed over, RocksDB over wheel: {RATIO_RULE}",
        _retrieval,
    ),
    Claim(
        "slower as it grows",
        DECIDED,
        "With large values compaction grows with the stored volume, and writing slows down bit by bit.",
        f"schedule rate of RocksDB with bodies of {quantities.size(LARGE_BODY_BYTES)} or more, smallest backlog over largest: {RATIO_RULE}",
        _slower_as_it_grows,
    ),
    Claim(
        "separation hurts reading",
        DECIDED,
        "Keeping values apart from keys saves the speed of writing, but reading suffers badly.",
        f"drain rate of RocksDB, values inline over separated: {RATIO_RULE}",
        _separation,
    ),
)
