"""The rule of the claims on made-up figures of which the answer is known, both ways."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, strategies as st

from benchmarks.tests.grid_results import Point

pytest.importorskip("matplotlib", reason="the report needs rmqstore-benchmarks[report]")

from rmqstore_benchmarks.report.claims import (
    ALL_CLAIMS,
    LEAST_REPEATS,
    Side,
    Verdict,
    compared,
    false_claims,
    package_lines,
    side_of,
    told,
    verdict_of,
    weighed,
)
from rmqstore_benchmarks.statistics import COLD_DRAIN, DRAIN, spreads

CLAIMS = {claim.name: claim for claim in ALL_CLAIMS}
KINDS = {"wheel": "reference", "rocksdb": "inline"}
NOISE = (0.98, 0.99, 1.0, 1.01, 1.02)
"""What repeats differ by."""


def phase(name: str, engine: str, kind: str = "", *, of: dict[str, Any] | None = None, **metrics: float) -> pd.DataFrame:
    """Return the figures of one phase of a cell, of five repeats each."""
    point = Point(**(of or {}))._asdict()
    kind = kind or KINDS.get(engine, "")
    variant = f"{engine}-{kind}"
    cell = {"cell_id": f"{variant}{point}", "engine": engine, "variant": variant, "settings": kind, "kind": kind, **point}
    rows = [(metric, value * noise) for metric, value in metrics.items() for noise in NOISE]
    found = spreads(pd.DataFrame(rows, columns=["metric", "value"]), ["metric"])
    return found.assign(phase=name, **cell)


def pair(first: tuple[float, ...], second: tuple[float, ...]) -> pd.DataFrame:
    """Return two sides on one cell, compared by their repeats."""
    return compared(pd.DataFrame({"values0": [first], "values1": [second]}))


# ---------------------------------------------------------------- the rule

SAMPLES = st.lists(st.floats(1.0, 10.0), min_size=1, max_size=7).map(tuple)
OPPOSITE = {Side.MORE: Side.LESS, Side.LESS: Side.MORE, Side.ALIKE: Side.ALIKE, Side.UNCLEAR: Side.UNCLEAR}
OPPOSITE_VERDICT = {Verdict.CONFIRMED: Verdict.REFUTED, Verdict.REFUTED: Verdict.CONFIRMED}


@given(st.floats(0.2, 5.0), st.floats(0.2, 5.0), st.integers(1, 9))
def test_the_rule_is_the_same_for_the_opposite(one: float, other: float, repeats: int) -> None:
    low, high = sorted((one, other))
    assert side_of(1 / high, 1 / low, repeats) is OPPOSITE[side_of(low, high, repeats)]


@given(st.lists(st.sampled_from(Side)))
def test_a_claim_turned_round_has_the_opposite_verdict(sides: list[Side]) -> None:
    verdict, opposite = (verdict_of(pd.DataFrame({"side": each})) for each in (sides, [OPPOSITE[side] for side in sides]))
    assert opposite is OPPOSITE_VERDICT.get(verdict, verdict)


@given(SAMPLES, SAMPLES)
def test_few_repeats_and_repeats_that_mix_show_nothing(first: tuple[float, ...], second: tuple[float, ...]) -> None:
    side = pair(first, second).side[0]
    if min(len(first), len(second)) < LEAST_REPEATS:
        assert side is Side.UNCLEAR
    elif side is Side.MORE:
        assert np.median(first) > np.median(second)


@pytest.mark.parametrize(
    ("sides", "verdict"),
    [
        ([], Verdict.NOT_MEASURED),
        ([Side.MORE, Side.MORE], Verdict.CONFIRMED),
        ([Side.LESS, Side.LESS], Verdict.REFUTED),
        ([Side.ALIKE, Side.ALIKE], Verdict.NO_DIFFERENCE),
        ([Side.LESS, Side.ALIKE], Verdict.DEPENDS),
        ([Side.MORE, Side.LESS, Side.UNCLEAR], Verdict.DEPENDS),
        ([Side.MORE, Side.ALIKE], Verdict.DEPENDS),
        ([Side.MORE, Side.UNCLEAR], Verdict.NOT_SHOWN),
        ([Side.LESS, Side.UNCLEAR], Verdict.NOT_SHOWN),
        ([Side.UNCLEAR], Verdict.NOT_SHOWN),
    ],
)
def test_a_verdict_is_what_all_cells_say(sides: list[Side], verdict: Verdict) -> None:
    assert verdict_of(pd.DataFrame({"side": sides})) is verdict


def test_chance_alone_makes_no_claim() -> None:
    """The same engine under two names, whose repeats differ by a tenth: 300 comparisons."""
    rng = np.random.default_rng(11)
    rows = []
    for backlog in range(300):
        for name in ("one", "two"):
            found = phase("schedule", "wheel", of={"backlog": backlog}, call_rate=1.0)
            rows.append(found.assign(variant=name, values=[tuple(rng.lognormal(0, 0.1, LEAST_REPEATS))]))
    same = false_claims(pd.concat(rows, ignore_index=True))
    assert len(same) == 300
    assert not same.side.isin([Side.MORE, Side.LESS]).any()


def test_ratios_are_told_with_what_each_cell_says() -> None:
    five = (1.0,) * 5
    assert told("it is {} as much", pair((2.0,) * 5, five)) == "it is 2 × as much (2 to 2, one cell: more)"
    mixed = [pair((2.0,) * 5, five), pair((0.5,) * 5, five), pair(five, five), pair((3.0,), (1.0,))]
    assert told("{}", pd.concat(mixed)) == "0.5 × to 3 × (more on 1 of 4 cells, less on 1, alike on 1, not shown on 1)"


# ---------------------------------------------------------------- the claims


COMPACTION = "compaction_per_user_byte"


def on(name: str, metric: str, values: dict[str, float], **of: Any) -> list[pd.DataFrame]:
    """Return one figure of a phase on one cell, of each engine, or ``engine/kind``."""
    return [phase(name, *design.split("/"), of=of, **{metric: value}) for design, value in values.items()]


def rolled(rocksdb: float, copying: float, pointing: float = 0.0, wheel: float = 1.0) -> list[pd.DataFrame]:
    """Return what three stores wrote while they rolled; RocksDB wrote 1 before that, and the wheels ``wheel``."""
    by = on("roll", "device_write_per_live_byte", {"rocksdb": rocksdb, "wheel": pointing, "wheel/copy": copying})
    return by + on("fill", "device_write_per_user_byte", {"rocksdb": 1.0, "wheel": wheel, "wheel/copy": wheel})


def cold(wheel: float, *, limit: float = 0.25, workload: str = "retry-backoff") -> list[pd.DataFrame]:
    found = []
    for name in ("cold_hand_over", COLD_DRAIN):
        found += on(name, "device_read_per_user_byte", {"wheel": wheel, "rocksdb": 1.0}, workload=workload)
        found += on(name, "memory_limit_per_user_byte", {"wheel": limit, "rocksdb": limit}, workload=workload)
    return found


def sorting(by_arrival: float, compacted: float = 0.0) -> list[pd.DataFrame]:
    rates = on("schedule", "call_rate", {"raw-rocksdb": 1.0, "raw-rocksdb-by-arrival": by_arrival})
    return rates + on("schedule", COMPACTION, {"raw-rocksdb": compacted})


def compacting(with_it: float, compacted: float = 0.5) -> list[pd.DataFrame]:
    times = on("fill", "store_cpu_us_per_message", {"raw-rocksdb": with_it, "raw-rocksdb-uncompacted": 2.0})
    return times + on("fill", COMPACTION, {"raw-rocksdb": compacted})


def handing(rocksdb: float, lmdb: float = 1.0, compacted: float = 0.0, backlog: int = 1) -> list[pd.DataFrame]:
    """Return the CPU times of three engines, of which the wheel takes 1."""
    times = on("hand_over", "cpu_us_per_message", {"wheel": 1.0, "rocksdb": rocksdb, "lmdb": lmdb}, backlog=backlog)
    return times + on("hand_over", COMPACTION, {"rocksdb": compacted}, backlog=backlog)


def growing(rocksdb: float, wheel: float, body_bytes: int = 4096, least: int = 10) -> list[pd.DataFrame]:
    """Return the rates of two that fall by these factors; RocksDB compacts from so many pending on."""
    found = []
    for backlog, rates in ((10, {"rocksdb": 9.0, "wheel": 9.0}), (1000, {"rocksdb": 9.0 / rocksdb, "wheel": 9.0 / wheel})):
        of = {"body_bytes": body_bytes, "backlog": backlog}
        found += on("schedule", "call_rate", rates, **of) + on("schedule", COMPACTION, {"rocksdb": float(backlog >= least)}, **of)
    return found


def balance(writes: float, reads: float) -> list[pd.DataFrame]:
    others = {"rocksdb": 1.0, "lmdb": 0.8, "memory": 99.0, "raw-rocksdb": 99.0, "null": 99.0}
    return on("schedule", "call_rate", {"wheel": writes} | others) + on(DRAIN, "call_rate", {"wheel": reads} | others)


def drained(inline: float, live_bytes: float = 2e8) -> list[pd.DataFrame]:
    rates = on(DRAIN, "call_rate", {"rocksdb/inline": inline, "rocksdb/separated": 1.0})
    return rates + on("fill", "live_bytes", {"rocksdb/inline": live_bytes, "rocksdb/separated": live_bytes})


@pytest.mark.parametrize(
    ("name", "phases", "verdict", "evidence"),
    [
        ("no rolling", rolled(0.0, 11.0, 0.2), Verdict.CONFIRMED, "write 12 × as much ("),
        ("no rolling", rolled(0.0, 11.0, 0.2), Verdict.CONFIRMED, "one cell: more); one that points to the message 1.2 × ("),
        ("no rolling", rolled(0.0, 8.0, wheel=4.0), Verdict.CONFIRMED, "write 3 × as much ("),
        ("no rolling", rolled(0.0, 0.0, wheel=1.7), Verdict.NO_DIFFERENCE, "write 1 × as much ("),
        ("no rolling", rolled(5.0, 2.0), Verdict.REFUTED, "write 0.5 × as much ("),
        ("less page-cache pollution", cold(3.0), Verdict.CONFIRMED, "reads 3 × as much from the device ("),
        ("less page-cache pollution", cold(0.5), Verdict.REFUTED, "reads 0.5 × as much from the device ("),
        ("less page-cache pollution", cold(3.0, limit=1.5), Verdict.NOT_MEASURED, "a memory limit below"),
        ("sorting on write", sorting(1.5), Verdict.CONFIRMED, "need no sorting 1.5 × as fast ("),
        ("sorting on write", sorting(1.0), Verdict.NO_DIFFERENCE, "one cell: alike"),
        ("sorting on write", sorting(0.5), Verdict.REFUTED, "one cell: less"),
        ("sorting on write", sorting(1.5, compacted=0.3), Verdict.NOT_MEASURED, "where no compaction ran"),
        ("compaction costs CPU", compacting(4.0), Verdict.CONFIRMED, "takes 2 × the CPU time ("),
        ("compaction costs CPU", compacting(1.0), Verdict.REFUTED, "takes 0.5 × the CPU time ("),
        ("compaction costs CPU", compacting(3.0, compacted=0.0), Verdict.NOT_MEASURED, "where compaction ran"),
        ("retrieval costs compute", handing(2.0), Verdict.CONFIRMED, "takes 2 × their CPU time (more on 2 of 2 cells); 2 × the wheel's"),
        ("retrieval costs compute", handing(2.0, lmdb=2.0), Verdict.DEPENDS, "more on 1 of 2 cells, alike on 1); 2 × the wheel's"),
        ("retrieval costs compute", handing(2.0) + handing(0.5, backlog=2), Verdict.DEPENDS, "0.5 × to 2 ×"),
        ("retrieval costs compute", handing(2.0, compacted=0.3), Verdict.NOT_MEASURED, "where no compaction ran"),
        ("slower as it grows", growing(3.0, 1.0), Verdict.CONFIRMED, "slows down 3 × as much as the wheel ("),
        ("slower as it grows", growing(3.0, 3.0), Verdict.NO_DIFFERENCE, "one cell: alike); RocksDB by 3 × ("),
        ("slower as it grows", growing(3.0, 1.0, least=1000), Verdict.NOT_MEASURED, "at which RocksDB compacts"),
        ("slower as it grows", growing(2.0, 3.0), Verdict.REFUTED, "one cell: less"),
        ("slower as it grows", growing(3.0, 1.0, body_bytes=256), Verdict.NOT_MEASURED, "bodies of 4 KiB or more"),
        ("separation hurts reading", drained(2.0), Verdict.CONFIRMED, "inline values drain 2 ×"),
        ("separation hurts reading", drained(0.5), Verdict.REFUTED, "inline values drain 0.5 ×"),
        ("separation hurts reading", drained(2.0, live_bytes=1e8), Verdict.NOT_MEASURED, "with 128 MiB or more"),
        ("random reads", cold(3.0) + cold(1.0, workload="eight-oclock"), Verdict.CONFIRMED, "costs the wheel 3 × as much reading"),
        ("random reads", cold(1.0) + cold(1.0, workload="eight-oclock"), Verdict.NO_DIFFERENCE, "costs the wheel 1 × as much reading"),
        ("random reads", cold(3.0), Verdict.NOT_MEASURED, "of eight-oclock and another workload"),
        ("reading given for writing", balance(2.0, 0.5), Verdict.CONFIRMED, "drains 2 × as fast (1.94 to 2.06, one cell: more)"),
        ("reading given for writing", balance(2.0, 2.0), Verdict.REFUTED, "the wheel schedules 2 × as fast ("),
        ("reading given for writing", balance(0.5, 0.5), Verdict.NOT_MEASURED, "a cell on which it writes faster"),
    ],
)
def test_a_claim_is_weighed_on_like_cells(name: str, phases: list[pd.DataFrame], verdict: Verdict, evidence: str) -> None:
    judged = CLAIMS[name].judge(pd.concat(phases, ignore_index=True))
    assert (judged.verdict, judged.evidence) == (verdict, judged.evidence)
    assert evidence in judged.evidence


def test_short_phases_and_several_stores_at_a_time_are_weighed_by_what_time_does_not_change() -> None:
    long, short, two = (
        phase("schedule", "wheel", of=of, wall_s=wall_s, call_rate=1.0, device_write_per_user_byte=1.0)
        for of, wall_s in (({"backlog": 1}, 0.5), ({"backlog": 2}, 0.1), ({"shards": 2}, 5.0))
    )
    found = weighed(pd.concat([long, short, two], ignore_index=True))
    assert set(found[found.metric == "call_rate"].backlog) == {1}
    assert set(found[found.metric == "device_write_per_user_byte"].backlog) == {1, 2}
    assert set(found.shards) == {1}


def test_every_claim_stands_without_data() -> None:
    for name, claim in CLAIMS.items():
        if name != "simple flow":
            assert claim.judge(phase("x", "wheel", rate=1.0)[:0]).verdict is Verdict.NOT_MEASURED, name
    assert len(CLAIMS) == 10


def test_lines_of_source_leave_out_comments_and_are_none_of_what_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "acme").mkdir()
    (tmp_path / "acme" / "__init__.py").write_text('"""Acme."""\n\n# why\nONE = 1\n')
    monkeypatch.syspath_prepend(tmp_path)
    assert package_lines("acme") == 2
    assert package_lines("acme", "no_such_package") == 0
