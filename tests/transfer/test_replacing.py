"""What a load or a migration finds of another one, in its place and beside it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import rmqstore
from rmqstore import TransferError
from rmqstore.transfer import dump, load, loading, migrate, replacing
from tests.pairs import DURABLE_PAIRS
from tests.transfer.conftest import CutShortError, cut, cut_at

ENGINES = [pair.timers for pair in DURABLE_PAIRS if pair.timers == pair.pops]
ENGINE, OTHER_ENGINE = ENGINES[:2] if len(ENGINES) > 1 else ("", "")

pytestmark = pytest.mark.skipif(len(ENGINES) < 2, reason="needs two durable engines")


def dumped(root: Path, name: str, count: int) -> Path:
    """Return a dump of a new store with so many timers."""
    with rmqstore.open(root / f"{name}-store", engine=ENGINE, services=False) as store:
        store.send_batch([rmqstore.Message("t", b"%d" % number) for number in range(count)], delay_ms=3_600_000)
        dump(store, root / name)
    return root / name


def timers_in(place: Path) -> int:
    """Return how many timers a store has that is closed."""
    with rmqstore.open(place, read_only=True) as store:
        return store.pending().total


@pytest.mark.parametrize("is_made_again", [True, False])
@pytest.mark.parametrize("step", ["_keep_old", "unlink"])
def test_a_load_whose_store_was_removed_behind_the_exchange_begins_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, is_made_again: bool
) -> None:
    """Also when an empty directory is there, which may have its inode."""
    source, place = dumped(tmp_path, "dump", 30), tmp_path / "new"
    place.mkdir()
    cut_at(monkeypatch, replacing.Replacement if step == "_keep_old" else Path, step, lambda: load(source, place))
    shutil.rmtree(place)
    if is_made_again:
        place.mkdir()
    load(source, place)
    assert timers_in(place) == 30
    assert {entry.name for entry in tmp_path.iterdir()} == {"dump", "dump-store", "new"}


def test_a_migration_whose_old_store_was_put_back_begins_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = dumped(tmp_path, "dump", 30).with_name("dump-store")
    (place / "rmqstore.toml").write_text("default_queues = 7")
    cut_at(monkeypatch, replacing.Replacement, "_keep_old", lambda: migrate(place, engine=OTHER_ENGINE))
    shutil.rmtree(place)
    place.with_name("dump-store.migrating").rename(place)
    migrate(place, engine=OTHER_ENGINE)
    assert timers_in(place) == 30
    assert (place / "rmqstore.toml").read_text() == "default_queues = 7"


@pytest.mark.parametrize("is_old_there", [True, False])
def test_what_two_renames_left_in_a_copied_tree_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_old_there: bool) -> None:
    """As of a backup, in which directories have other inodes; and with the old store copied back to its place."""
    (tmp_path / "first").mkdir()
    place = dumped(tmp_path / "first", "dump", 30).with_name("dump-store")
    monkeypatch.setattr(replacing, "exchanged", lambda one, other: False)
    renamed: list[Path] = []

    def rename_once(path: Path, target: Path) -> Path:
        if path.parent == place.parent:
            if renamed:
                raise CutShortError
            renamed.append(target)
        return rename(path, target)

    rename = Path.rename
    cut_at(monkeypatch, Path, "rename", lambda: migrate(place, engine=OTHER_ENGINE), rename_once)
    shutil.copytree(tmp_path / "first", tmp_path / "second")
    place = tmp_path / "second" / "dump-store"
    if is_old_there:
        shutil.copytree(place.with_name(renamed[0].name), place)
    migrate(place, engine=OTHER_ENGINE)
    with rmqstore.open(place, services=False) as store:
        assert store.pending().total == 30
        assert store.stats().timer_engine == OTHER_ENGINE


def test_what_a_killed_claim_has_half_removed_counts_for_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first wish, asked for again, begins anew, and does not publish what is left of it."""
    place = dumped(tmp_path, "dump", 30).with_name("dump-store")
    cut_at(monkeypatch, replacing, "exchanged", lambda: migrate(place, engine=OTHER_ENGINE))

    def half(directory: Path) -> None:
        (directory / "rmqstore.json").unlink()
        raise CutShortError

    cut_at(monkeypatch, replacing.shutil, "rmtree", lambda: migrate(place, engine=ENGINE, precision_ms=100), half)
    migrate(place, engine=OTHER_ENGINE)
    assert timers_in(place) == 30


def test_the_old_store_stays_when_the_new_one_was_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = dumped(tmp_path, "dump", 30).with_name("dump-store")
    cut_at(monkeypatch, replacing.Replacement, "_keep_old", lambda: migrate(place, engine=OTHER_ENGINE))
    shutil.rmtree(place)
    with pytest.raises(rmqstore.StorePathError, match="no store at"):
        migrate(place, engine=OTHER_ENGINE)
    (old,) = tmp_path.glob("dump-store.before-*")
    assert timers_in(old) == 30


def test_a_store_that_was_made_in_the_place_of_the_old_one_is_migrated_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the same epoch as the one that was there."""
    place = dumped(tmp_path, "dump", 3).with_name("dump-store")
    cut_at(monkeypatch, replacing, "exchanged", lambda: migrate(place, engine=OTHER_ENGINE))
    shutil.rmtree(place)
    dumped(tmp_path, "other", 7).with_name("other-store").rename(place)
    migrate(place, engine=OTHER_ENGINE)
    assert timers_in(place) == 7


@pytest.mark.parametrize("is_building", [True, False])
def test_of_two_loads_into_one_place_none_publishes_what_the_other_makes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_building: bool
) -> None:
    first, second, place = dumped(tmp_path, "first", 30), dumped(tmp_path, "second", 5), tmp_path / "new"
    begun: list[object] = []

    def begin_the_second(*_: object) -> None:
        if not begun:
            begun.append(None)
            with pytest.raises(rmqstore.StoreLockedError if is_building else CutShortError):
                load(second, place, progress=cut)

    if is_building:
        load(first, place, progress=begin_the_second)
    else:
        alone = replacing.Replacement.alone
        calls: list[object] = []

        def behind_the_building(self: replacing.Replacement) -> Any:
            calls.append(self)
            if len(calls) == 3:  # behind the look at what was there, and the claim
                begin_the_second()
            return alone(self)

        monkeypatch.setattr(replacing.Replacement, "alone", behind_the_building)
        with pytest.raises(TransferError, match=r"another load into .* began meanwhile"):
            load(first, place)
        load(second, place)
    assert timers_in(place) == (30 if is_building else 5)


def test_a_link_that_leads_to_itself_is_told(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(rmqstore.RmqstoreError, match="symbolic links"):
        migrate(tmp_path / "loop", engine=ENGINE)
    with pytest.raises(rmqstore.RmqstoreError, match="symbolic links"):
        load(dumped(tmp_path, "dump", 1), tmp_path / "loop")


def test_a_migration_that_is_out_of_date_takes_no_place_that_was_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The old store went on, and was moved away: what was built of it before has only a part of it."""
    place = dumped(tmp_path, "dump", 3).with_name("dump-store")
    cut_at(monkeypatch, replacing, "exchanged", lambda: migrate(place, engine=OTHER_ENGINE))
    with rmqstore.open(place, services=False) as store:
        store.send(rmqstore.Message("t", b"later"))
    place.rename(tmp_path / "aside")
    with pytest.raises(rmqstore.StorePathError, match="no store at"):
        migrate(place, engine=OTHER_ENGINE)
    assert not place.exists()


@pytest.mark.parametrize("step", ["exchanged", "ready"])
def test_settings_that_were_written_meanwhile_are_those_of_the_new_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    source, place = dumped(tmp_path, "dump", 3), tmp_path / "new"
    place.mkdir()
    owner = replacing if step == "exchanged" else replacing.Replacement
    for move in (lambda: load(source, place), lambda: migrate(place, engine=OTHER_ENGINE)):
        cut_at(monkeypatch, owner, step, move)
        written = f"retention_ms = {9_999_999_999 + len(list(tmp_path.iterdir()))}"
        (place / "rmqstore.toml").write_text(written)
        move()
        assert (place / "rmqstore.toml").read_text() == written


def test_a_load_that_comes_late_to_its_building_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, place = dumped(tmp_path, "first", 30), dumped(tmp_path, "second", 5), tmp_path / "new"
    built, others = loading.built, [lambda: load(second, place)]

    def built_late(*given: Any) -> Any:
        if others:
            others.pop()()
        return built(*given)

    monkeypatch.setattr(loading, "built", built_late)
    with pytest.raises(TransferError, match=r"another load into .* began meanwhile"):
        load(first, place)
    assert timers_in(place) == 5
    assert list(tmp_path.glob("new.*")) == []
