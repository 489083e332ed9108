"""``rmqstore demo --store``: where the store is left, and that a place that will not do is refused before anything is played."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmqstore.cli import demo
from rmqstore.cli.demo import check_place, leave_store
from rmqstore.errors import StorePathError
from rmqstore_conformance.stores import START_MS
from tests.cli.conftest import ENGINE, Command


@pytest.fixture
def unplayed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail as soon as the day is begun."""

    def begin(orders: int, seed: int) -> None:
        pytest.fail("the day was begun")

    monkeypatch.setattr(demo, "make_orders", begin)


@pytest.mark.usefixtures("unplayed")
def test_a_place_that_will_not_do_is_refused_before_the_day(cli: Command) -> None:
    cli.send()
    file = cli.file("file", "x")
    for place in (str(cli.data), file, str(cli.root)):
        assert f"{place} exists and was not made by the demo" in cli.bad(1, "demo", "--store", place)
    missing = cli.root / "no" / "where"
    assert f"{missing.parent} does not exist; make it first" in cli.bad(1, "demo", "--store", str(missing))
    assert len(cli.good("peek", "data", "orders", "--json").json["messages"]) == 1, "the store that is there is as it was"


def test_an_earlier_store_of_the_demo_is_replaced(cli: Command) -> None:
    for _ in range(2):
        leave_store(cli.data, ENGINE, START_MS)
        assert cli.good("timers", "data", "--json").json["total"] > 800
        cli.good("send", "data", "mine", "x")
    leave_store(cli.data, ENGINE, START_MS)
    assert "has no topic 'mine'" in cli.bad(1, "peek", "data", "mine")


def test_a_check_changes_nothing(tmp_path: Path) -> None:
    check_place(tmp_path / "new")
    with pytest.raises(StorePathError, match="was not made by the demo"):
        check_place(tmp_path)
    assert list(tmp_path.iterdir()) == []
