"""The packed layout: its format, its windows, and that it answers as the row layout does, whatever is called and wherever it crashes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmqstore import FormatVersionError, Message, MessageBatch
from rmqstore.contract import EMPTY_CURSOR, CancelOutcome, EngineOptions, TimerCursor, TimerHandle, TimerStore
from rmqstore.ordered import packwindow, session
from rmqstore.ordered.kv import WriteBatch
from rmqstore.ordered.layout import FORGOTTEN_KEY, HOLE, META, PAIR, SPACES, TIMERS, TRACES
from rmqstore.ordered.packs import BUCKET_MS, decode_pack, is_pack, pack_key, packs_of, parts_of
from rmqstore.ordered.runs import RUN_BYTES, DamagedRunError, decode_run
from rmqstore.ordered.timers import layout_of
from rmqstore_memory.kv import MemoryKV

MINUTE = 1_700_000_040_000
"""A whole minute."""

LAYOUTS = ("row", "packed")


class TapedKV(MemoryKV):
    """Remembers every write, so that a store can be opened as of any of them."""

    def __init__(self) -> None:
        super().__init__("taped", len(SPACES))
        self.tape: list[WriteBatch] = []

    def write(self, batch: WriteBatch) -> int:
        self.tape.append(batch)
        return super().write(batch)

    def as_of(self, writes: int) -> TapedKV:
        """Return the database as a crash after so many writes leaves it."""
        copy = TapedKV()
        for batch in self.tape[:writes]:
            copy.write(batch)
        copy.sync()
        return copy


def opened(kv: TapedKV, layout: str, cursor: TimerCursor = EMPTY_CURSOR, **options: Any) -> TimerStore:
    settled = EngineOptions(store_tag=7, broker="b", precision_ms=1000, engine={"layout": layout}, **options)
    timers = session.open_session(kv, settled).timers()
    timers.recover(cursor)
    return timers


def batch(ticks: list[int], first: int = 0, body_bytes: int = 8) -> MessageBatch:
    return MessageBatch.of(
        [
            Message(
                "t",
                b"%d" % (first + n) + bytes(body_bytes),
                keys=(f"k{n % 3}",) if n % 2 else (),
                message_id=f"m{first + n}",
                born_ms=1,
                deliver_at_ms=tick,
            )
            for n, tick in enumerate(ticks)
        ]
    )


def ids(found: Any) -> list[str]:
    return [message.message_id for message in found]


@contextmanager
def narrow(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make windows so small that a bucket takes several."""
    with monkeypatch.context() as patched:
        patched.setattr(packwindow, "ROOM_BYTES", 400)
        patched.setattr(packwindow, "_NOTED_BYTES", 300)
        yield


# ---------------------------------------------------------------- the format


@settings(max_examples=60)
@given(st.lists(st.integers(0, 3 * BUCKET_MS // 1000), min_size=1, max_size=40), st.integers(1, 1_000))
def test_a_call_becomes_packs_and_runs_that_hold_each_record_once(seconds: list[int], first_seq: int) -> None:
    ticks = np.asarray([MINUTE + 1000 * each for each in seconds], np.int64)
    records = [b"record %d" % row for row in range(len(seconds))]
    held = {}
    for key, value in packs_of(records, ticks, first_seq, 99, 5):
        if is_pack(key):
            pack = decode_pack(key, value)
            bucket, last_seq, first_tick = parts_of(key)
            places = [(pack.bucket + step, pack.last_seq - back) for step, back in zip(pack.steps, pack.backs, strict=True)]
            assert places == sorted(places)
            assert (bucket, last_seq, first_tick) == (pack.bucket, max(seq for _, seq in places), places[0][0])
            assert bucket % BUCKET_MS == 0
            assert {tick - tick % BUCKET_MS for tick, _ in places} == {bucket}
            assert len({tick for tick, _ in places}) > 1
            assert (pack.epoch, pack.store_ms) == (5, 99)
            held.update(zip(places, pack.records, strict=True))
        else:
            run = decode_run(value)
            tick, first = int.from_bytes(key[:8], "big"), int.from_bytes(key[8:], "big")
            held.update({(tick, first + step): record for step, record in zip(run.deltas, run.records, strict=True)})
    assert held == {(int(tick), first_seq + row): records[row] for row, tick in enumerate(ticks)}


def test_the_bytes_of_a_pack_are_those_of_the_page() -> None:
    ((key, value),) = packs_of([b"late", b"early"], np.asarray([MINUTE + 3000, MINUTE + 1000]), 10, 2, 1)
    assert key.hex() == f"{2**63 + MINUTE:016x}" + f"{11:016x}" + f"{1000:08x}"
    assert value[4:] == (
        (1).to_bytes(4, "little") + (2).to_bytes(4, "little") + (2).to_bytes(8, "little")
        + b"".join(n.to_bytes(4, "little") for n in (5, 4, 1000, 3000, 0, 1)) + b"earlylate"
    )  # fmt: skip


def test_a_large_call_is_cut_by_seq_so_that_packs_do_not_overlap() -> None:
    ticks = np.asarray([MINUTE + 1000 * (row % 7) for row in range(3000)], np.int64)
    entries = packs_of([b"x" * 200] * 3000, ticks, 1, 0, 1)
    ranges = []
    for key, value in entries:
        pack = decode_pack(key, value)
        ranges.append((pack.last_seq - max(pack.backs), pack.last_seq))
        assert len(value) < RUN_BYTES + 200 + 20 + 12 * len(pack.records)
    assert len(ranges) > 3
    assert all(low[1] < high[0] for low, high in zip(sorted(ranges), sorted(ranges)[1:], strict=False))


@pytest.mark.parametrize("at", [0, 5, 9, 21, 30, -1])
def test_a_changed_byte_of_a_pack_is_found(at: int) -> None:
    ((key, value),) = packs_of([b"late", b"early"], np.asarray([MINUTE + 3000, MINUTE + 1000]), 10, 2, 1)
    spoilt = bytearray(value)
    spoilt[at] ^= 1
    with pytest.raises(DamagedRunError):
        decode_pack(key, bytes(spoilt))
    with pytest.raises(DamagedRunError):
        decode_pack(key, value[:at])


# ---------------------------------------------------------------- the layouts give the same answers


class Twins:
    """A store of each layout, given the same calls; every answer of the one must be that of the other."""

    def __init__(self) -> None:
        self.kvs = {layout: TapedKV() for layout in LAYOUTS}
        self.stores = {layout: opened(kv, layout) for layout, kv in self.kvs.items()}
        self.cursor = EMPTY_CURSOR
        self.durable = EMPTY_CURSOR
        self.handles: list[TimerHandle] = []
        self.count = 0

    def both(self, call: Any) -> Any:
        row, packed = (call(self.stores[layout]) for layout in LAYOUTS)
        assert row == packed
        return packed

    def put(self, ticks: list[int], now_ms: int) -> None:
        rows = batch(ticks, self.count)
        self.count += len(ticks)
        receipts = self.both(lambda store: self._receipts(store, rows, now_ms))
        self.handles += receipts

    @staticmethod
    def _receipts(store: TimerStore, rows: MessageBatch, now_ms: int) -> list[TimerHandle]:
        receipts = store.put(rows, now_ms)[0]
        return [receipts.handle(row) for row in range(len(receipts))]

    def cancel(self, which: list[int], now_ms: int) -> None:
        handles = [self.handles[n % len(self.handles)] for n in which] if self.handles else []
        self.both(lambda store: store.cancel(handles, now_ms)[0])

    def tick(self, until_ms: int, limit: int) -> list[str]:
        self.both(lambda store: store.seal(until_ms))
        found = self.both(lambda store: self._due(store, self.cursor, limit))
        assert found == self.both(lambda store: self._due(store, self.cursor, limit))
        self.cursor = found[1]
        return found[0]

    @staticmethod
    def _due(store: TimerStore, after: TimerCursor, limit: int) -> tuple[list[str], TimerCursor]:
        due = store.due(after, limit)
        return ids(due.messages.messages), due.cursor

    def forget(self) -> None:
        self.durable = self.cursor
        self.both(lambda store: store.forget(self.durable))

    def crash(self) -> None:
        """Open both anew; the receiver has what it held durably."""
        for layout in LAYOUTS:
            kv = self.kvs[layout].as_of(len(self.kvs[layout].tape))
            self.kvs[layout], self.stores[layout] = kv, opened(kv, layout, self.durable)
        self.cursor = self.durable

    def look(self) -> None:
        """Compare everything that can be read."""
        for handed in (EMPTY_CURSOR, self.cursor):
            edges = [0, MINUTE, MINUTE + 30_500, MINUTE + BUCKET_MS, MINUTE + 4 * BUCKET_MS]
            self.both(lambda store: store.pending(edges, handed))  # noqa: B023
            self.both(lambda store: store.scan(0, 2**50, handed=handed))  # noqa: B023
            self.both(lambda store: self._pages(store, handed))  # noqa: B023
        self.both(lambda store: store.stats().pending)
        self.both(lambda store: [store.get(handle) for handle in self.handles])
        self.both(lambda store: sorted(self._exported(store)))
        assert self.both(lambda store: store.verify()) == []

    @staticmethod
    def _pages(store: TimerStore, handed: TimerCursor) -> list[Any]:
        found, after = [], None
        while True:
            page = store.scan(MINUTE, MINUTE + 3 * BUCKET_MS, after, 2, handed)
            found += page.timers
            if (after := page.next_after) is None:
                return found

    @staticmethod
    def _exported(store: TimerStore) -> list[Any]:
        found, after = [], None
        while True:
            page = store.export_state("timers", after, 3)
            found += [tuple(sorted((name, str(value)) for name, value in row.items())) for row in page.rows.to_pylist()]
            if (after := page.next) is None:
                return found


SECONDS = st.integers(-20, 170)
CALLS = st.one_of(
    st.tuples(st.just("put"), st.lists(SECONDS, min_size=1, max_size=8)),
    st.tuples(st.just("put"), st.lists(SECONDS, min_size=1, max_size=8)),
    st.tuples(st.just("cancel"), st.lists(st.integers(0, 60), min_size=1, max_size=4)),
    st.tuples(st.just("cancel_key"), st.integers(0, 2)),
    st.tuples(st.just("tick"), st.integers(1, 6)),
    st.tuples(st.just("tick"), st.just(100)),
    st.tuples(st.just("clock"), st.integers(-60, 90)),
    st.tuples(st.just("forget"), st.just(0)),
    st.tuples(st.just("crash"), st.just(0)),
    st.tuples(st.just("look"), st.just(0)),
)


@pytest.mark.parametrize("small_windows", [False, True], ids=["windows", "narrow windows"])
def test_both_layouts_give_the_same_answers(small_windows: bool) -> None:
    """Puts, cancels, seals with a clock that is set back, due in pieces, forget, crashes, and every read in between."""

    @settings(max_examples=40)
    @given(st.lists(CALLS, min_size=2, max_size=22))
    def histories(calls: list[tuple[str, Any]]) -> None:
        twins = Twins()
        now_ms = MINUTE
        for name, value in calls:
            if name == "put":
                twins.put([now_ms + 1000 * each + each for each in value], now_ms)
            elif name == "cancel":
                twins.cancel(value, now_ms)
            elif name == "cancel_key":
                twins.both(lambda store: store.cancel_key("t", f"k{value}", now_ms)[0])  # noqa: B023
            elif name == "tick":
                twins.tick(now_ms, value)
            elif name == "clock":
                now_ms += 1000 * value
            elif name == "forget":
                twins.forget()
            elif name == "crash":
                twins.crash()
            else:
                twins.look()
        twins.look()
        # Packs of which the rest was cancelled go with the next seal, which needs something live to close.
        twins.put([now_ms + 9 * BUCKET_MS], now_ms)
        while twins.tick(now_ms + 10 * BUCKET_MS, 5):
            twins.forget()
        twins.forget()
        twins.look()
        assert not twins.kvs["packed"].scan(TIMERS, b"", None, 1)
        assert twins.stores["packed"].stats().pending == 0

    with pytest.MonkeyPatch.context() as monkeypatch:
        if small_windows:
            with narrow(monkeypatch):
                histories()
        else:
            histories()


@settings(max_examples=25)
@given(st.lists(st.lists(st.integers(0, 130), min_size=2, max_size=9), min_size=1, max_size=5), st.integers(1, 130), st.integers(1, 7))
def test_a_crash_at_any_write_loses_and_doubles_nothing(puts: list[list[int]], until: int, limit: int) -> None:
    """Hand over up to a time, with every forget in many writes; a store opened as of any of them hands over the rest, once."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr("rmqstore.ordered.packedlayout.FORGET_PAGE", 2)
        kv = TapedKV()
        store = opened(kv, "packed")
        for seconds in puts:
            store.put(batch([MINUTE + 1000 * each for each in seconds], 100 * len(kv.tape)), MINUTE)
        everything = {each.message.message_id for each in store.scan(0, 2**50).timers}
        store.seal(MINUTE + 1000 * until)
        given_out: list[str] = []
        # What the receiver held durably, as of each write.
        held = [(len(kv.tape), EMPTY_CURSOR, 0)]
        while found := store.due(held[-1][1], limit):
            if not len(found.messages):
                break
            given_out += ids(found.messages.messages)
            held.append((len(kv.tape), found.cursor, len(given_out)))
            store.forget(found.cursor)
        for writes in range(held[0][0], len(kv.tape) + 1):
            _, cursor, count = next(each for each in reversed(held) if each[0] <= writes)
            again = opened(kv.as_of(writes), "packed", cursor)
            assert again.verify() == []
            assert again.pending(handed=cursor).total == again.stats().pending == len(everything) - count
            again.seal(MINUTE + 10 * BUCKET_MS)
            rest = ids(again.due(cursor, 1000).messages.messages)
            assert sorted(given_out[:count] + rest) == sorted(everything)


# ---------------------------------------------------------------- one thing each


def put_spread(store: TimerStore, seconds: list[int], first: int = 0, now_ms: int = MINUTE) -> list[TimerHandle]:
    receipts = store.put(batch([MINUTE + 1000 * each for each in seconds], first), now_ms)[0]
    return [receipts.handle(row) for row in range(len(receipts))]


def test_packs_stay_as_they_are_until_all_of_them_is_covered() -> None:
    kv = TapedKV()
    store = opened(kv, "packed")
    handles = put_spread(store, [1, 20, 40])
    ((key, value),) = kv.scan(TIMERS, b"", None, 9)
    store.seal(MINUTE + 21_000)
    cursor = store.due(EMPTY_CURSOR, 10).cursor
    store.forget(cursor)
    assert kv.scan(TIMERS, b"", None, 9) == [(key, value)]
    assert kv.get(META, FORGOTTEN_KEY) == cursor.to_bytes()
    assert store.stats().pending == 1
    assert [store.get(handle) is not None for handle in handles] == [False, False, True]
    assert store.cancel(handles, MINUTE)[0] == [CancelOutcome.ALREADY_DELIVERED] * 2 + [CancelOutcome.CANCELLED]
    store.seal(MINUTE + BUCKET_MS)
    store.forget(store.due(cursor, 10).cursor)
    store.forget(cursor.join([(MINUTE + BUCKET_MS, 3)]))
    assert not kv.scan(TIMERS, b"", None, 9)
    assert store.verify() == []


def test_the_open_bucket_is_read_once_and_not_again_at_each_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A minute's ticks decode each of its packs once; a pack that is put meanwhile is decoded alone."""
    kv = TapedKV()
    store = opened(kv, "packed")
    for n in range(20):
        put_spread(store, [1 + n, 20 + n, 39 + n], 10 * n)
    decoded: list[bytes] = []
    monkeypatch.setattr(packwindow, "decode_pack", lambda key, value: decoded.append(key) or decode_pack(key, value))
    cursor, got = EMPTY_CURSOR, []
    for second in range(1, 60):
        if second == 30:
            put_spread(store, [31, 50], 900)
        store.seal(MINUTE + 1000 * second)
        due = store.due(cursor, 1000)
        got += ids(due.messages.messages)
        cursor = due.cursor
        store.forget(cursor)
    assert len(got) == len(set(got)) == 62
    assert len(decoded) == 21


def test_a_bucket_of_any_size_is_read_in_bounded_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packwindow, "ROOM_BYTES", 20_000)
    kv = TapedKV()
    store = opened(kv, "packed")
    for n in range(20):
        store.put(batch([MINUTE + 1000 * (row % 50) for row in range(100)], 1000 * n, 100), MINUTE)
    most = 0
    settle = packwindow.Windows._read

    def measured(self: Any, *args: Any) -> packwindow.Window:
        nonlocal most
        window = settle(self, *args)
        most = max(most, sum(map(len, window.records)))
        return window

    monkeypatch.setattr(packwindow.Windows, "_read", measured)
    store.seal(MINUTE + BUCKET_MS)
    cursor, got = EMPTY_CURSOR, []
    while len((due := store.due(cursor, 300)).messages):
        got += [(message.deliver_at_ms, int(message.message_id[1:])) for message in due.messages.messages]
        cursor = due.cursor
        store.forget(cursor)
    assert got == sorted(got)
    assert len(got) == 2000
    assert 10_000 < most < 60_000


def test_a_window_that_got_shorter_is_not_read_behind_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was put meanwhile makes a window end earlier; nothing behind its new end comes twice."""
    monkeypatch.setattr(packwindow, "ROOM_BYTES", 20_000)
    monkeypatch.setattr(packwindow, "_NOTED_BYTES", 15_000)
    kv = TapedKV()
    store = opened(kv, "packed")
    count = 0
    while sum(len(value) for _, value in kv.scan_all(TIMERS)) < 2 * 20_000 - 600:
        store.put(batch([MINUTE + 20_000, MINUTE + 50_000], count, 200), MINUTE)
        count += 2
    # This keeps a window up to the end of the minute.
    store.seal(MINUTE + 20_000)
    *_, tail, last, _ = store.scan(0, 2**50, limit=count).timers
    token = PAIR.pack(tail.handle.tick, tail.handle.seq + 1)
    behind = store.export_state("timers", token, 9).rows.to_pylist()
    assert behind[0]["message_id"] == last.message.message_id
    store.put(batch([MINUTE + 20_000 + 1000 * (n % 9) for n in range(40)], count, 200), MINUTE)
    assert store.export_state("timers", token, 9).rows.to_pylist() == behind


def test_damaged_packs_are_parked_and_the_rest_goes_on() -> None:
    """T12: at the first tick of the pack; and at the end of its bucket when some of it was handed over and forgotten before."""
    kv = TapedKV()
    store = opened(kv, "packed")
    for n in range(3):
        put_spread(store, [10, 20, 50], 10 * n)
    entries = kv.scan(TIMERS, b"", None, 9)

    def damage(at: int) -> None:
        write = WriteBatch()
        write.put(TIMERS, entries[at][0], entries[at][1][:-1] + b"?")
        kv.write(write)
        store._layout = layout_of(kv)  # type: ignore[attr-defined]

    damage(0)
    assert any("pack" in each for each in store.verify())
    store.seal(MINUTE + 9000)
    assert not len(store.due(EMPTY_CURSOR, 10).messages)
    store.seal(MINUTE + 10_000)
    due = store.due(EMPTY_CURSOR, 10)
    assert sorted(message.topic for message in due.messages.messages) == ["%PARKED%", "t", "t"]
    store.forget(due.cursor)
    assert len(kv.scan(TIMERS, b"", None, 9)) == 2
    assert store.verify() == []
    damage(1)
    store.seal(MINUTE + 50_000)
    later = store.due(due.cursor, 10)
    assert [message.topic for message in later.messages.messages] == ["t", "t"]
    store.forget(later.cursor)
    store.seal(MINUTE + BUCKET_MS)
    last = store.due(later.cursor, 10)
    assert [message.topic for message in last.messages.messages] == ["%PARKED%"]
    store.forget(last.cursor)
    assert not kv.scan(TIMERS, b"", None, 9)
    assert store.verify() == []
    assert store.stats().pending == 0


def test_a_list_of_handles_goes_past_a_damaged_pack() -> None:
    """C3: those in it are unknown, those of packs before and behind it in the same minute, and of runs, are cancelled."""
    kv = TapedKV()
    store = opened(kv, "packed")
    handles = [handle for n in range(3) for handle in put_spread(store, [10, 20, 50], 10 * n)]
    handles += put_spread(store, [20, 20], 40)
    key, value = kv.scan(TIMERS, b"", None, 9)[2]
    assert is_pack(key)
    write = WriteBatch()
    write.put(TIMERS, key, value[:-1] + b"?")
    kv.write(write)
    expected = [CancelOutcome.CANCELLED] * 11
    expected[3:6] = [CancelOutcome.UNKNOWN] * 3
    assert store.cancel(handles, MINUTE)[0] == expected


def spoil(kv: TapedKV, which: int = 0) -> None:
    """Change the last byte of an entry of timers."""
    key, value = kv.scan(TIMERS, b"", None, 99)[which]
    write = WriteBatch()
    write.put(TIMERS, key, value[:-1] + bytes((value[-1] ^ 1,)))
    kv.write(write)
    kv.sync()


def crashed(kv: TapedKV, layout: str, cursor: TimerCursor = EMPTY_CURSOR) -> tuple[TapedKV, TimerStore]:
    """Open a database anew, with what the receiver has durably."""
    kv = kv.as_of(len(kv.tape))
    return kv, opened(kv, layout, cursor)


def topics(store: TimerStore, after: TimerCursor = EMPTY_CURSOR, limit: int = 10) -> tuple[list[str], TimerCursor]:
    due = store.due(after, limit)
    return [message.topic for message in due.messages.messages], due.cursor


def test_a_damaged_pack_is_parked_where_a_cancelled_timer_was() -> None:
    kv = TapedKV()
    # Its first timer has its largest seq, so the pack stands at the place of that one.
    handles = put_spread(opened(kv, "packed"), [9, 7, 5])
    assert opened(kv, "packed").cancel(handles[2:], MINUTE)[0] == [CancelOutcome.CANCELLED]
    spoil(kv)
    kv, store = crashed(kv, "packed")
    store.seal(MINUTE + BUCKET_MS)
    assert topics(store)[0] == ["%PARKED%"]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_counters_are_right_after_every_write_of_a_forget_that_meets_damage(layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rmqstore.ordered.packedlayout.FORGET_PAGE", 2)
    monkeypatch.setattr("rmqstore.ordered.rowlayout.FORGET_PAGE", 2)
    kv = TapedKV()
    store = opened(kv, layout)
    put_spread(store, [5, 5, 5] if layout == "row" else [5, 20, 40])
    put_spread(store, [6, 7, 8, 8, 30, 99], 10)
    # The timer of the next minute lies in a run, before the packs.
    spoil(kv, LAYOUTS.index(layout))
    kv, store = crashed(kv, layout)
    store.seal(MINUTE + BUCKET_MS)
    found, cursor = topics(store)
    assert sorted(found) == ["%PARKED%"] + 5 * ["t"]
    before = len(kv.tape)
    store.forget(cursor)
    assert len(kv.tape) > before + 1
    assert store.verify() == []
    for writes in range(before, len(kv.tape) + 1):
        again = opened(kv.as_of(writes), layout, cursor)
        assert again.verify() == []
        assert again.stats().pending == 1


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_second_damaged_run_is_known_as_such_after_the_first_was_forgotten(layout: str) -> None:
    kv = TapedKV()
    store = opened(kv, layout)
    put_spread(store, [1])
    put_spread(store, [2])
    put_spread(store, [3])
    spoil(kv, 0)
    spoil(kv, 1)
    kv, store = crashed(kv, layout)
    store.seal(MINUTE + 9000)
    _, first = topics(store, limit=1)
    _, second = topics(store, first, limit=1)
    store.forget(first)
    store.forget(second)
    assert store.verify() == []
    assert store.stats().pending == 1


def test_a_pack_that_is_damaged_between_hand_over_and_forget_is_parked_at_the_end_of_its_minute() -> None:
    kv = TapedKV()
    store = opened(kv, "packed")
    put_spread(store, [5, 20, 40])
    store.seal(MINUTE + 5000)
    found, cursor = topics(store)
    assert found == ["t"]
    spoil(kv)
    kv, store = crashed(kv, "packed", cursor)
    store.seal(MINUTE + 50_000)
    assert topics(store, cursor)[0] == []
    assert store.next_tick_ms() == MINUTE + BUCKET_MS - 1
    # A crash before this is forgotten may park it again.
    for _ in range(2):
        store.seal(MINUTE + BUCKET_MS)
        found, parked = topics(store, cursor)
        assert found == ["%PARKED%"]
        kv, store = crashed(kv, "packed", cursor)
    # But where everything up to the end of the minute went out, nothing is left of it.
    kv, store = crashed(kv, "packed", parked)
    assert not kv.scan(TIMERS, b"", None, 1)
    assert store.verify() == []
    assert store.stats().pending == 0


def test_a_pack_that_is_damaged_before_the_forget_of_one_session_is_parked_too() -> None:
    kv = TapedKV()
    store = opened(kv, "packed")
    put_spread(store, [5, 20, 40])
    store.seal(MINUTE + 5000)
    _, cursor = topics(store)
    spoil(kv)
    # Its window is read again, and has nothing more to seal.
    store._layout._windows.clear()  # type: ignore[attr-defined]
    store.seal(MINUTE + 41_000)
    store.seal(MINUTE + 42_000)
    cursor = store.due(cursor, 9).cursor
    assert store.next_tick_ms() is None
    store.forget(cursor)
    assert store.next_tick_ms() == MINUTE + BUCKET_MS - 1
    store.seal(MINUTE + BUCKET_MS)
    found, cursor = topics(store, cursor)
    assert found == ["%PARKED%"]
    store.forget(cursor)
    assert not kv.scan(TIMERS, b"", None, 1)
    assert store.verify() == []


def test_a_damaged_pack_is_not_passed_over_for_a_clock_that_was_set_back() -> None:
    """The cursor has a corner beyond its minute, which it got before the pack was there."""
    kv = TapedKV()
    store = opened(kv, "packed")
    put_spread(store, [100, 110])
    store.seal(MINUTE + 3 * BUCKET_MS)
    _, cursor = topics(store)
    put_spread(store, [5, 20, 40], 10)
    store.seal(MINUTE + 5000)
    found, cursor = topics(store, cursor)
    assert found == ["t"]
    assert len(cursor.corners) == 2
    spoil(kv)
    kv, store = crashed(kv, "packed", cursor)
    store.seal(MINUTE + 2 * BUCKET_MS)
    assert topics(store, cursor)[0] == ["%PARKED%"]


def test_a_damaged_pack_that_was_asked_for_but_not_given_is_left() -> None:
    kv = TapedKV()
    store = opened(kv, "packed")
    put_spread(store, [4, 5, 20])
    store.seal(MINUTE + 5000)
    _, cursor = topics(store)
    put_spread(store, [3], 10)
    spoil(kv, 1)
    kv = kv.as_of(len(kv.tape))
    # This one does not forget; it asks for more than it gives.
    store = opened(kv, "packed")
    store.seal(MINUTE + 5000)
    assert topics(store, limit=1)[0] == ["t"]
    store.forget(cursor)
    store.seal(MINUTE + BUCKET_MS)
    assert "%PARKED%" in topics(store, cursor)[0]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("seconds", [[5] * 8, [1, 2, 3, 5, 5, 6]], ids=["one tick", "several"])
def test_the_rest_of_a_batch_that_ended_within_an_entry_is_announced_after_the_clock_was_set_back(layout: str, seconds: list[int]) -> None:
    store = opened(TapedKV(), layout)
    put_spread(store, seconds)
    store.seal(MINUTE + 9000)
    first, cursor = topics(store, limit=3)
    store.seal(MINUTE)
    none, cursor = topics(store, cursor)
    assert (len(first), none, store.next_tick_ms()) == (3, [], MINUTE + 5000)
    store.seal(MINUTE + 9000)
    rest, cursor = topics(store, cursor)
    assert len(first) + len(rest) == len(seconds)
    store.seal(MINUTE)
    topics(store, cursor)
    assert store.next_tick_ms() is None


@pytest.mark.parametrize("layout", LAYOUTS)
def test_times_may_be_as_late_as_numbers_go(layout: str) -> None:
    store = opened(TapedKV(), layout)
    put_spread(store, [5, 20, 40, 99])
    for last in (2**63 - 2000, 2**63 - 1, 2**64):
        assert len(store.scan(0, last).timers) == 4
        assert store.pending([0, MINUTE + 20_000, last]).counts == (1, 3)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_to_forget_nothing_after_something_changes_nothing(layout: str) -> None:
    kv = TapedKV()
    store = opened(kv, layout)
    put_spread(store, [5, 20, 40, 99])
    store.seal(MINUTE + 6000)
    store.forget(topics(store)[1])
    before = len(kv.tape)
    store.forget(EMPTY_CURSOR)
    assert len(kv.tape) == before
    assert store.stats().pending == 3


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_holes_of_a_damaged_entry_go_with_it_and_no_other_ones(layout: str) -> None:
    kv = TapedKV()
    store = opened(kv, layout)
    one = [5, 5, 5] if layout == "row" else [5, 20, 40]
    calls = [put_spread(store, one, 10 * n) for n in range(3)]
    # In the packed layout, a run at a tick of the packs, from before and after the one that gets damaged.
    runs = [put_spread(store, [5, 5, 5], 10 * n) for n in range(4, 6)]
    store.cancel([handles[1] for handles in (*calls, *runs)], MINUTE)
    # The second of the calls, and the first run.
    spoil(kv, 1 if layout == "row" else 3)
    if layout == "packed":
        spoil(kv, 0)
    kv, store = crashed(kv, layout)
    store.seal(MINUTE + 5000)
    found, cursor = topics(store, limit=20)
    assert "%PARKED%" in found
    store.forget(cursor)
    assert store.verify() == []
    left = [handles for handles in calls if store.get(handles[2]) is not None]
    assert store.cancel([handles[1] for handles in left], MINUTE)[0] == [CancelOutcome.CANCELLED] * len(left)
    store.seal(MINUTE + BUCKET_MS)
    found, cursor = topics(store, cursor, limit=20)
    assert len(found) == (0 if layout == "row" else 2)
    store.forget(cursor)
    assert store.verify() == []
    assert not kv.scan(TRACES, HOLE, HOLE + b"\xff", 1)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_run_that_is_damaged_after_a_part_of_it_went_out_is_parked(layout: str) -> None:
    kv = TapedKV()
    store = opened(kv, layout)
    put_spread(store, [5, 5, 5])
    put_spread(store, [5, 5], 10)
    store.seal(MINUTE + 9000)
    _, part = topics(store, limit=2)
    _, whole = topics(store, part, limit=1)
    spoil(kv)
    # All of the run went out.
    again, store = crashed(kv, layout, whole)
    assert len(again.scan(TIMERS, b"", None, 9)) == 1
    assert store.verify() == []
    # Two of its three timers did; the receiver has them, and a crash comes again before the parked one is forgotten.
    kv, store = crashed(kv, layout, part)
    kv, store = crashed(kv, layout, part)
    store.seal(MINUTE + 9000)
    found, cursor = topics(store, part)
    assert found == ["%PARKED%", "t", "t"]
    store.forget(cursor)
    assert not kv.scan(TIMERS, b"", None, 1)
    assert store.verify() == []


def test_what_is_forgotten_of_packs_has_a_bound_of_corners() -> None:
    """A clock that is set back again and again: F loses corners as soon as no pack has anything under them."""
    kv = TapedKV()
    store = opened(kv, "packed")
    cursor = EMPTY_CURSOR
    for n in range(40):
        start = 200 * (40 - n)
        put_spread(store, [start, start + 2], 10 * n)
        store.seal(MINUTE + 1000 * (start + 100))
        cursor = store.due(cursor, 10).cursor
        store.sync()
        store.forget(cursor)
        store.sync()
        assert len(cursor.corners) <= 16
        assert len(TimerCursor.from_bytes(kv.get(META, FORGOTTEN_KEY) or b"").corners) <= 16
    assert store.stats().pending == 0


def test_congestion_counts_the_timers_of_packs() -> None:
    store = opened(TapedKV(), "packed", congestion_limit=10)
    layout: Any = store._layout  # type: ignore[attr-defined]
    handles = put_spread(store, [1, 2, 2, 3])
    put_spread(store, [2, 2], 10)
    assert [layout.count_of_tick(MINUTE + 1000 * second) for second in range(5)] == [0, 1, 4, 1, 0]
    store.cancel(handles[1:2], MINUTE)
    assert layout.count_of_tick(MINUTE + 2000) == 3


def test_a_store_keeps_the_layout_it_was_made_with() -> None:
    kv = TapedKV()
    put_spread(opened(kv, "packed"), [1, 2])
    with pytest.raises(FormatVersionError, match="layout = 'packed'"):
        opened(kv.as_of(len(kv.tape)), "row")
    kv = TapedKV()
    put_spread(opened(kv, "row"), [1, 2])
    with pytest.raises(FormatVersionError, match="layout = 'row'"):
        opened(kv.as_of(len(kv.tape)), "packed")


def test_the_keys_of_packs_lie_behind_all_runs() -> None:
    assert pack_key(0, 0) > b"\x7f" + b"\xff" * 15
