"""The generators: seeded, of the right shape, and the same timers in all three forms."""

from __future__ import annotations

import numpy as np
import pytest

from rmqstore_benchmarks.workloads import (
    BODY_BYTES,
    DISTRIBUTIONS,
    HALF_HOUR_MS,
    HOUR_MS,
    LONGEST_DELAY_MS,
    TOPIC,
    Workload,
    delays_ms,
)


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_delays_are_seeded_and_within_their_bounds(distribution: str) -> None:
    drawn = delays_ms(distribution, 20_000, np.random.default_rng(2))
    assert (drawn == delays_ms(distribution, 20_000, np.random.default_rng(2))).all()
    assert drawn.min() >= 1
    assert drawn.max() <= LONGEST_DELAY_MS


def test_distributions_have_their_shapes() -> None:
    drawn = {name: delays_ms(name, 50_000, np.random.default_rng(4)) for name in DISTRIBUTIONS}
    assert set(drawn["constant"].tolist()) == {HALF_HOUR_MS}
    assert np.median(drawn["lognormal"]) == pytest.approx(HALF_HOUR_MS, rel=0.03)
    assert np.log(drawn["lognormal"]).std() == pytest.approx(1.0, rel=0.03)
    assert drawn["uniform"].max() <= HOUR_MS
    assert np.median(drawn["uniform"]) == pytest.approx(HALF_HOUR_MS, rel=0.03)


def test_a_batch_does_not_depend_on_those_before_it() -> None:
    first, second = Workload("uniform", 50), Workload("uniform", 50)
    first.arrow(0)
    assert first.arrow(1).equals(second.arrow(1))
    assert not first.arrow(1).equals(first.arrow(2))
    assert not first.arrow(1).equals(Workload("uniform", 50, seed=2).arrow(1))


def test_both_forms_hold_the_same_timers() -> None:
    work = Workload("lognormal", 200)
    columns, messages = work.arrow(3), work.messages(3)
    assert [message.body for message in messages] == columns.column("body").to_pylist()
    assert [message.deliver_at_ms for message in messages] == columns.column("deliver_at_ms").to_pylist()
    assert {message.topic for message in messages} == {TOPIC}
    assert all(len(message.body) == BODY_BYTES for message in messages)
