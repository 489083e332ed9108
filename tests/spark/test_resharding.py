"""A data set gets another number of shards: what goes where, what is refused, and what a kill at any step leaves."""

from __future__ import annotations

import fcntl
import itertools
import shutil
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import rmqstore
from rmqstore import AckOutcome, CancelOutcome, ManualClock, Message, transfer
from rmqstore.spark import Dataset, copies, dataset as datasets, jobs, migrating, repair, resharding, shard_of
from rmqstore.spark.jobs import Job
from rmqstore.spark.running import tick_shard
from rmqstore.store.directory import flocked
from rmqstore.store.pauses import Flow
from rmqstore.transfer import replacing
from rmqstore.transfer.taking import Taking
from tests.spark.datasets import ENGINE, ENGINES, NOW_MS, SECOND_MS, Killed, committed, ingested, killed, rows, staged

pytestmark = pytest.mark.skipif(not ENGINES, reason="no durable engine is installed")

TIMERS = 60
HOUR_MS = 3600 * SECOND_MS


def filled(path: Path, engine: str = ENGINE) -> Dataset:
    """Two shards with timers of a job, and what programs made of messages in them.

    Of ``mails``, both groups have consumed the first three of each shard, and neither the other four; of ``runs``, which one group pops in
    order, every message has a group. Group ``a`` has a message to be tried again and a dead letter.
    """
    dataset = Dataset.create(path, shards=2, engine=engine)
    ingested(committed(dataset, "load", rows(0, TIMERS)))
    clock = ManualClock(NOW_MS)
    for shard in dataset.shards:
        own = [name for name in map(str, range(1000)) if shard_of(name, 2) == shard]
        with rmqstore.open(dataset.shard_path(shard), clock=clock, services=False) as store:
            store.groups.set("a", max_retries=5)
            store.send_batch([Message("mails", b"mail", keys=(name,), message_id=f"m{name}") for name in own[:7]])
            for group in ("a", "b"):
                popped = store.pop("mails", group, max_messages=3, invisible_ms=SECOND_MS)
                if group == "b":
                    store.ack(popped)
                else:
                    store.ack(popped[0])
                    store.reject(popped[1], reason="bad")
            store.send_batch(
                [Message("runs", b"%d" % n, message_group=name, message_id=f"r{name}-{n}") for n in range(3) for name in own[:3]]
            )
            store.topics.create("runs", 2)
            first = store.pop("runs", "in-order", max_messages=1, order=True)
            store.ack(first)
            clock.advance(2 * SECOND_MS)
            store.tick()
        clock.set(NOW_MS)
    return dataset


def opened(dataset: Dataset, stack: ExitStack, now_ms: int = NOW_MS) -> list[rmqstore.Store]:
    clock = ManualClock(now_ms)
    return [stack.enter_context(rmqstore.open(dataset.shard_path(shard), clock=clock, services=False)) for shard in dataset.shards]


def contents(dataset: Dataset) -> dict[str, Any]:
    """Return what all shards hold together, and see that each row is where its name says."""
    found: dict[str, Any] = {"timers": Counter(), "messages": Counter(), "lag": Counter(), "settings": set()}
    for shard in dataset.shards:
        with rmqstore.open(dataset.shard_path(shard), read_only=True) as store:
            assert store.verify() == []
            messages = [
                message
                for info in store.topics.list(system=True)
                for queue in range(info.queues)
                for message in store.engine.pops.read(info.name, queue, 0, 1000).messages
            ]
            timers = [timer.message for timer in store.scan().timers]
            for message in (*messages, *timers):
                assert shard_of(message.message_group or message.keys[0], dataset.manifest.shards) == shard
            found["messages"].update((each.topic, each.message_id, each.body, each.attempt) for each in messages)  # type: ignore[union-attr]
            found["timers"].update((each.message_id, each.keys, each.deliver_at_ms) for each in timers)
            for each in store.groups.subscriptions():
                lag = store.lag(each.topic, each.group)
                for name in ("ready", "in_flight", "retry", "dead", "expired", "backing_off"):
                    found["lag"][each.group, each.topic, each.is_ordered, name] += getattr(lag, name)
            found["settings"].add(store.groups.settings("a").max_retries)
    return found


@pytest.mark.parametrize(("engine", "shards"), [*((engine, 3) for engine in ENGINES), (ENGINE, 1)])
def test_everything_goes_to_the_shard_that_its_name_has(tmp_path: Path, engine: str, shards: int) -> None:
    dataset = filled(tmp_path / "data", engine)
    before = contents(dataset)
    assert before["lag"]["a", "mails", False, "ready"] == before["lag"]["b", "mails", False, "ready"] == 8
    assert before["lag"]["a", "mails", False, "retry"] == before["lag"]["a", "mails", False, "dead"] == 2
    with ExitStack() as stack:
        handle = opened(dataset, stack)[0].scan().timers[0].handle
    report = resharding.reshard_all(dataset, shards)
    made = Dataset.open(dataset.path)
    made.check_ready(is_served_too=True)
    assert contents(made) == before
    assert sum(each.timers for each in report.shards) == before["timers"].total() == TIMERS - 2
    assert contents(Dataset(Path(report.previous), dataset.manifest)) == before
    # What was finished is known, and what is new goes to the new shards.
    record = Job(made, "load").record()
    assert record is not None
    assert record.is_done
    ingested(committed(made, "more", rows(TIMERS, 10)))
    with ExitStack() as stack:
        stores = opened(made, stack)
        assert {store.cancel(handle) for store in stores} == {CancelOutcome.UNKNOWN}
        runs: dict[str, list[bytes]] = {}
        given: Counter[tuple[str, str]] = Counter()
        for store in stores:
            for group in ("a", "b"):
                popped = store.pop("mails", group, max_messages=100)
                assert set(store.ack(popped)) <= {AckOutcome.ACKED}
                given.update((group, message.message_id) for message in popped)
            while popped := store.pop("runs", "in-order", max_messages=100, order=True):
                for message in popped:
                    runs.setdefault(message.message_group or "", []).append(message.body)
                store.ack(popped)
        assert set(given.values()) == {1}
        assert Counter(group for group, _ in given) == {"a": 10, "b": 8}
        assert len(runs) == 6
        assert all(bodies == sorted(bodies) for bodies in runs.values())
        assert sum(map(len, runs.values())) == 16
    with ExitStack() as stack:
        moved = [store.tick().handed_over for store in opened(made, stack, NOW_MS + HOUR_MS)]
        assert sum(moved) == TIMERS - 2 + 10


def test_what_cannot_be_split_is_refused_and_nothing_is_begun(tmp_path: Path) -> None:
    dataset = filled(tmp_path / "data")
    clock = ManualClock(NOW_MS)

    def refused(match: str, error: type[Exception] = rmqstore.TransferError, shards: int = 3) -> None:
        with pytest.raises(error, match=match):
            resharding.reshard_all(dataset, shards)
        assert not resharding.what_is_left(Dataset.open(dataset.path))
        assert [entry.name for entry in tmp_path.iterdir()] == ["data"]

    refused("has 2 shards already", shards=2)
    refused("1–4096, not 0", rmqstore.IllegalArgumentError, shards=0)
    with rmqstore.open(dataset.shard_path(1), clock=clock, services=False) as store:
        refused("shard-00001", rmqstore.StoreLockedError)
        store.pop("mails", "b", max_messages=1)
    refused("group 'b' has leased messages of 'mails' in .*shard-00001")
    with rmqstore.open(dataset.shard_path(1), clock=clock, services=False) as store:
        store.ack(store.leases("mails", "b")[0].receipt)
    refused(r"not equally far in .*shard-00001, queue 0 \(a at offset 3, b at offset 4\)")
    with rmqstore.open(dataset.shard_path(1), clock=clock, services=False) as store:
        store.groups.delete("b")
        store.pauses.begin(Flow.HAND_OVER)
    refused("has schedules or pauses")
    with rmqstore.open(dataset.shard_path(1), clock=clock, services=False) as store:
        store.pauses.end(Flow.HAND_OVER)
        store.groups.set("a", max_retries=6)
    refused("differ in the settings of group 'a'")
    with rmqstore.open(dataset.shard_path(1), clock=clock, services=False) as store:
        store.groups.set("a", max_retries=5)
    with rmqstore.open(dataset.shard_path(0), clock=clock, services=False) as store:
        assert store.pop("runs", "in-order", max_messages=1, order=True)
    refused("has leased messages of 'runs'")
    with rmqstore.open(dataset.shard_path(0), clock=ManualClock(NOW_MS + HOUR_MS), services=False) as store:
        store.tick()
    refused("messages that came back")
    with rmqstore.open(dataset.shard_path(0), clock=clock, services=False) as store:
        store.groups.delete("in-order")
    config = dataset.shard_path(0) / "rmqstore.toml"
    config.write_text("max_retries = 3\n")
    refused("different files rmqstore.toml", rmqstore.ConfigError)
    config.unlink()
    half = committed(dataset, "half", rows(100, 10))
    refused("'half'")
    assert half.withdraw()


def test_nothing_is_written_by_the_number_of_shards_that_there_was(tmp_path: Path) -> None:
    dataset = Dataset.create(tmp_path / "data", shards=2, engine=ENGINE)
    before, early = Dataset.open(dataset.path), staged(Job(dataset, "early"), rows(0, 20))
    with resharding.begun(dataset, 3) as plan:
        on_its_way = Dataset.open(dataset.path)
        with pytest.raises(rmqstore.ConfigError, match="to 3 shards has not come to its end"):
            Job(before, "early").commit(early, NOW_MS)
        made = tuple(resharding.build(dataset, plan, shard) for shard in range(3))
        resharding.end(dataset, plan, made)
    late = staged(Job(before, "late"), rows(0, 20))
    calls: list[tuple[Callable[[], object], str]] = [
        (lambda: Job(Dataset.open(dataset.path), "early").commit(early, NOW_MS), "split among 2 shards, and data set .* has got 3 since"),
        (lambda: Job(before, "late").commit(late, NOW_MS), "split among 2 shards, and data set .* has got 3 since"),
        (lambda: tick_shard(before, 0, NOW_MS), "has got 3 shards since this began, which was meant for 2"),
        (lambda: resharding.reshard_all(before, 4), "run it again"),
        (lambda: resharding.undo_here(on_its_way), "run it again"),
    ]
    for refused, match in calls:
        with pytest.raises(rmqstore.TransferError, match=match):
            refused()
    assert Dataset.open(dataset.path).manifest.shards == 3
    written = Job(Dataset.open(dataset.path), "late")
    written.commit(staged(written, rows(0, 20)), NOW_MS)
    ingested(written)
    assert contents(Dataset.open(dataset.path))["timers"].total() == 20


def test_a_copy_is_of_the_old_shards_or_of_the_new_ones(tmp_path: Path) -> None:
    dataset = Dataset.create(tmp_path / "data", shards=2, engine=ENGINE)
    ingested(committed(dataset, "load", rows(0, TIMERS)))
    earlier = Dataset.open(dataset.path)
    with resharding.begun(dataset, 3) as plan:
        made = tuple(resharding.build(dataset, plan, shard) for shard in range(3))

        def exchanging(source: Path, target: Path) -> None:
            transfer.dump(source, target)
            if source.name == "shard-00000":
                resharding.end(dataset, plan, made)

        with pytest.raises(rmqstore.TransferError, match="on its way to 3 shards"):
            copies.copied(Dataset.open(dataset.path), tmp_path / "beside", "dumping", exchanging)
        resharding.end(dataset, plan, made)
    with pytest.raises(rmqstore.TransferError, match="run it again"):
        copies.copied(earlier, tmp_path / "late", "dumping", transfer.dump)
    found = Dataset.open(dataset.path)
    copy = copies.copied(found, tmp_path / "behind", "dumping", transfer.dump)
    assert Dataset.open(copy).manifest == found.manifest
    assert sorted(entry.name.partition("-2-shards")[0] for entry in tmp_path.iterdir()) == ["behind", "data", "data.before"]


def test_who_waited_for_the_lock_of_jobs_has_that_of_the_data_set_in_the_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (Dataset.create(tmp_path / name, shards=1, engine=ENGINE) for name in ("data", "other"))
    begins, has_it, lets_go = threading.Event(), threading.Event(), threading.Event()
    flock = fcntl.flock

    def wait() -> None:
        with jobs._locked(first):
            has_it.set()
            lets_go.wait(60)

    def noted(handle: Any, how: int) -> None:
        if threading.current_thread() is waiter:
            begins.set()
        flock(handle, how)

    waiter = threading.Thread(target=wait)
    with jobs._locked(first), monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", noted)
        waiter.start()
        assert begins.wait(60)
        first.path.rename(tmp_path / "before")
        second.path.rename(first.path)
    try:
        assert has_it.wait(60)
        with pytest.raises(BlockingIOError), flocked(first.path / "jobs", fcntl.LOCK_EX | fcntl.LOCK_NB):
            pass
    finally:
        lets_go.set()
        waiter.join()


STEPS = [
    (replacing, "write_durably"),
    (datasets, "write_durably"),
    (resharding, "copy_finished"),
    (Taking, "run"),
    (replacing, "exchanged"),
    (Path, "rename"),
]
"""What a resharding does for good; of renames, those of the data sets."""


def killed_at(step: int, root: Path, patch: pytest.MonkeyPatch) -> None:
    """Let the process end behind a step in ``root``."""
    numbers = itertools.count()

    def killing(call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*given: Any, **named: Any) -> Any:
            if call is rename and given[0].parent != root:
                return call(*given, **named)
            answer = call(*given, **named)
            if next(numbers) == step:
                raise Killed
            return answer

        return run

    rename = Path.rename
    for owner, name in STEPS:
        patch.setattr(owner, name, killing(getattr(owner, name)))


@pytest.mark.parametrize(
    ("mends", "exchanges", "first", "distance"),
    [
        pytest.param(repair.finish, True, 0, 1, id="finish"),
        # What an undo removes is the same at every step before the exchange, which is the eleventh.
        pytest.param(repair.undo, True, 1, 3, id="undo"),
        # Up to there both ways are the same; behind it, the next one is the first of two renames.
        pytest.param(repair.finish, False, 11, 1, id="finish without an exchange"),
    ],
)
def test_killed_at_any_step_it_goes_on_or_back(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    mends: Callable[[Dataset], list[str]],
    exchanges: bool,
    first: int,
    distance: int,
) -> None:
    before = contents(filled(tmp_path / "first", ENGINES[0]))
    if not exchanges:
        monkeypatch.setattr(replacing, "exchanged", lambda *_: False)
    found = Counter[int]()
    for step in itertools.count(first, distance):
        root = tmp_path / str(step)
        root.mkdir()
        shutil.copytree(tmp_path / "first", root / "data")
        with monkeypatch.context() as patch:
            killed_at(step, root, patch)
            try:
                resharding.reshard_all(Dataset.open(root / "data"), 3)
            except Killed:
                pass
            else:
                break
        dataset = repair.opened(root / "data")
        mends(dataset)
        dataset = Dataset.open(root / "data")
        assert list(repair.troubles(dataset)) == []
        dataset.check_ready(is_served_too=True)
        assert contents(dataset) == before
        assert {entry.name.partition("-2-shards")[0] for entry in root.iterdir()} <= {"data", "data.before"}
        found[dataset.manifest.shards] += 1
        shutil.rmtree(root)
    assert found.keys() == ({3} if mends is repair.finish else {2, 3})
    assert sum(found.values()) > 1


def test_no_data_set_is_made_between_the_two_renames_of_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = filled(tmp_path / "data", ENGINES[0])
    before = contents(dataset)
    with monkeypatch.context() as patch:
        patch.setattr(replacing, "exchanged", lambda *_: False)
        killed_at(11, tmp_path, patch)
        with pytest.raises(Killed):
            resharding.reshard_all(dataset, 3)
    assert not dataset.path.exists()
    with pytest.raises(rmqstore.StorePathError, match="on its way to another number of shards"):
        Dataset.open_or_create(dataset.path)
    assert contents(repair.opened(dataset.path)) == before


def test_a_shard_that_is_opened_meanwhile_is_split_anew(tmp_path: Path) -> None:
    dataset = filled(tmp_path / "data", ENGINES[0])
    with killed(resharding, "end", 0):
        resharding.reshard_all(dataset, 3)
    (trouble,) = repair.troubles(Dataset.open(dataset.path))
    assert "to 3 shards has not come to its end" in trouble.text
    for refused in (dataset.check_whole, lambda: migrating.begin(dataset, ENGINES[-1])):
        if refused == dataset.check_whole or len(ENGINES) > 1:
            with pytest.raises(rmqstore.ConfigError, match="to 3 shards has not come to its end"):
                refused()
    with pytest.raises(rmqstore.TransferError, match="on its way to 3 shards"):
        resharding.reshard_all(dataset, 4)
    with rmqstore.open(dataset.shard_path(0), clock=ManualClock(NOW_MS), services=False) as store:
        name = next(name for name in map(str, range(2000, 3000)) if shard_of(name, 2) == 0)
        store.send(Message("orders", b"late", keys=(name,)), delay_ms=HOUR_MS)
    before = contents(dataset)
    assert "has 3 shards now" in repair.finish(dataset)[0]
    assert contents(Dataset.open(dataset.path)) == before
