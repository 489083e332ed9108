"""Mutants that cut, fold, glue, round or hash what they are given, or lose or change one field of one copy of a message."""

from __future__ import annotations

import functools
import re
import unicodedata
import zlib
from collections.abc import Callable, Sequence
from itertools import accumulate, chain
from typing import Any

import pyarrow as pa

from rmqstore.batch import MessageBatch
from rmqstore.contract import GroupProgress, LeaseInfo, MessageState, PendingCounts, PopRequest, PopResult, PopTxn, TimerCursor
from rmqstore.contract.timers import EMPTY_CURSOR
from rmqstore.engine.pops.administration import Administration
from rmqstore.engine.pops.lease import Popping
from rmqstore.engine.pops.settle import Leasing
from rmqstore.engine.pops.transaction import Transaction
from rmqstore.engine.timers.counts import MinuteCounts
from rmqstore.engine.timers.store import OrderedTimers
from rmqstore.message import RETRY_PREFIX, Message, PoppedMessage
from rmqstore_conformance.proving.kinds import (
    ROWS_DUE,
    ROWS_PUT,
    ROWS_SENT,
    SENT,
    answers,
    asks,
    but,
    cancels_by_key,
    column_set,
    edit,
    edited,
    exports,
    instead,
    times_put,
    values_of,
    with_column,
    with_rows,
)
from rmqstore_conformance.proving.planting import ANY_HISTORY, CORE_HISTORY, LMDB, Placed, Pops, Put, Timers, mutant

data_mutant = functools.partial(mutant, kind="data")
fidelity_mutant = functools.partial(mutant, kind="fidelity")


# ---------------------------------------------------------------- timers


@data_mutant("H2", "H2.every_family_of_values_comes_as_it_was_sent", at=ROWS_PUT)
def strips_properties(message: Message) -> Message:
    """The values of a timer's properties lose blanks at their ends."""
    values = {name: value.strip() or value for name, value in message.properties.items()}
    return but(message, properties=values) if values != dict(message.properties) else message


@data_mutant("H2", "H2.every_family_of_values_comes_as_it_was_sent", at=instead(Timers, "put"))
def zero_born_is_none(self: Timers, put: Put, batch: MessageBatch, now_ms: int, marks: Sequence[bytes] = ()) -> Placed:
    """A timer that says it was born at 0 ms is taken for one that does not say."""
    return put(with_rows(batch, lambda each: but(each, born_ms=each.born_ms or now_ms)), now_ms, marks)


@data_mutant("C6", "C6.keys_that_are_alike_are_told_apart", at=cancels_by_key)
def composes_keys(topic: str, key: str, other_topic: str, other: str) -> bool:
    """A cancel by key takes keys that are equal once composed (NFC) for one key."""
    return topic == other_topic and unicodedata.normalize("NFC", key) == unicodedata.normalize("NFC", other)


cuts_keys = data_mutant("C6", "C6.keys_that_are_alike_are_told_apart")(
    "The index by key holds the first 64 bytes of a key.",
    cancels_by_key(lambda topic, key, other_topic, other: topic == other_topic and key.encode()[:64] == other.encode()[:64]),
)
glues_topic_and_key = data_mutant("C6", "C6.keys_that_are_alike_are_told_apart")(
    "The index by key joins topic and key with nothing between them.",
    cancels_by_key(lambda topic, key, other_topic, other: topic + key == other_topic + other),
)
hashes_keys_short = data_mutant("C6", "C6.keys_that_are_alike_are_told_apart")(
    "The index by key trusts the CRC-32 of a key.",
    cancels_by_key(lambda topic, key, other_topic, other: topic == other_topic and zlib.crc32(key.encode()) == zlib.crc32(other.encode())),
)


@data_mutant("I1", "I1.marks_that_are_alike_are_told_apart", at=instead(Timers, "put"))
def marks_by_checksum(self: Timers, put: Put, batch: MessageBatch, now_ms: int, marks: Sequence[bytes] = ()) -> Placed:
    """Marks of timers are kept as their CRC-32, so two marks may be one."""
    return put(batch, now_ms, [zlib.crc32(mark).to_bytes(4, "big") for mark in marks])


minutes_wrap = data_mutant("T10", "T5.times_beyond_2_53_are_kept_to_the_ms")(
    "Pending timers are counted by minute in 32 bits, so those of some thousand years ahead are counted in the bucket of an early one.",
    edit(MinuteCounts.add_to, "minute", "(minute % 2**32)"),
)


@data_mutant("T10", CORE_HISTORY, at=instead(Timers, "pending"))
def counts_by_seconds(
    self: Timers, pending: Callable[..., PendingCounts], edges_ms: Sequence[int] = (), handed: TimerCursor = EMPTY_CURSOR
) -> Any:
    """The edges of pending counts are rounded down to whole seconds."""
    whole = [edge // 1000 * 1000 for edge in edges_ms]
    return pending(whole if len(set(whole)) == len(whole) else edges_ms, handed)


_CHECK = "check_horizon(delivers, now_ms, self._options.max_delay_ms)"
horizon_of_first_row = data_mutant("T5", "T5.above_the_set_horizon_nothing_is_stored")(
    "Of a batch only the first row is held against the longest delay.",
    edit(OrderedTimers.put, _CHECK, _CHECK.replace("delivers", "delivers[:1]")),
)


# ---------------------------------------------------------------- pops


@data_mutant("I1", "I1.marks_that_are_alike_are_told_apart", at=asks(Pops, "apply"))
def marks_as_text(txn: PopTxn) -> PopTxn:
    """Marks of sends for now are decoded as UTF-8 with replacement, so two that are no text may be one."""
    marks = [mark.decode(errors="replace").encode()[:255] for mark in txn.marks]
    return but(txn, marks=marks) if marks else txn


trailing_zeros_lost = data_mutant("R1", "H2.every_family_of_values_comes_as_it_was_sent")(
    "The body of a message that is sent for now is kept as a C string: zeros at its end are lost.",
    ROWS_SENT(lambda message: but(message, body=message.body.rstrip(b"\0") or message.body[:1])),
)


@data_mutant("R1", "H2.every_family_of_values_comes_as_it_was_sent", at=ROWS_SENT)
def strips_tags(message: Message) -> Message:
    """Ids and tags of messages that are sent for now lose blanks that only Unicode knows."""
    tag = message.tag and (message.tag.strip() or message.tag)
    message_id = message.message_id and (message.message_id.strip() or message.message_id)
    return but(message, tag=tag, message_id=message_id)


@data_mutant("R1", at=ROWS_SENT)
def page_borders_eat_bytes(message: Message) -> Message:
    """A body of which a multiple of 4096 bytes is stored loses its last byte."""
    at_border = len(message.body) % 4096 == 0
    return but(message, body=message.body[:-1]) if at_border else message


@data_mutant("R1", at=SENT)
def sliced_columns_unmoved(batch: MessageBatch) -> MessageBatch:
    """Of a slice of Arrow columns the bodies are read from the beginning of the buffer."""
    if not batch.has_columns or not (body := batch.columns.column("body")).offset:
        return batch
    whole = pa.Array.from_buffers(body.type, len(body), [None, *body.buffers()[1:]])
    return with_column(batch, "body", whole)


_FOLDED = "next((each for each in self._state.topics.values() if each.name.casefold() == name.casefold()), None)"
folds_topics = data_mutant("P2", "P2.topics_that_are_alike_are_told_apart")(
    "Topics that differ in case alone are one topic.",
    edit(Transaction.topic, "self._topics.get(name) or self._state.topics.get(name)", f"BEFORE or {_FOLDED}"),
)


@data_mutant("P10", "P10.tags_that_are_alike_are_told_apart", at=asks(Pops, "pop"))
def tags_by_hash(request: PopRequest) -> PopRequest:
    """Tags are compared by their Java hash, as a consume queue keeps it, and by nothing more."""
    if not re.fullmatch(r"[\w-]+( *\|\| *[\w-]+)*", request.filter):
        return request
    # In a Java hash Aa and BB are the same.
    return but(request, filter=" || ".join((request.filter, request.filter.replace("Aa", "BB"), request.filter.replace("BB", "Aa"))))


@data_mutant("P10", "P10.properties_that_are_alike_are_told_apart", at=asks(Pops, "pop"))
def filter_numbers_as_floats(request: PopRequest) -> PopRequest:
    """An SQL92 filter reads integers as doubles, so ids beyond 2^53 are not told apart."""
    return but(request, filter=re.sub(r"\b[0-9]{16,18}\b", lambda number: str(int(float(number[0]))), request.filter))


acks_by_byte = data_mutant("P8", "P8.any_of_a_large_pop_can_be_acked_alone")(
    "The place of a message in its check point is kept in one byte, so an ack of the 257th message of a pop is one of the first.",
    edit(Leasing._ack_run, "map(lease.index_of, offsets)", "(at and at % 256 for at in BEFORE)"),
)
_NUMBERS = "attrgetter('ck_start_offset', 'pop_time_ms', 'queue_id', 'topic', 'retry_flag', 'epoch', 'broker')"
acks_mix_groups = data_mutant("P8", "P8.leases_that_are_alike_are_told_apart")(
    "A batch of acks joins receipts whose check points have equal numbers, whatever their groups.",
    edit(Leasing.ack, "_CHECK_POINT_OF", _NUMBERS),
)
deletes_by_suffix = data_mutant("P11", "P2.topics_that_are_alike_are_told_apart")(
    "To delete a topic takes every retry topic away whose name ends like the topic's.",
    edit(Administration.delete_topic, "other.partition('+')[2] == name", "other.endswith(name)"),
)


@data_mutant("P14", "P2.topics_that_are_alike_are_told_apart", at=instead(Pops, "leases"))
def leases_by_prefix(self: Pops, leases: Any, topic: str | None = None, group: str | None = None) -> list[LeaseInfo]:
    """The leases of a topic are listed with those of every topic whose name begins with its own."""
    return [each for each in leases(None, group) if topic is None or each.topic.startswith(topic)]


offsets_sort_as_text = data_mutant("P14", "P12.a_topic_of_the_most_queues")(
    "Where a group stands is listed with the numbers of queues sorted as text.",
    answers(Pops, "offsets")(lambda found: sorted(found, key=lambda each: (each.topic, str(each.queue_id)))),
)
queue_zero_is_any = data_mutant("P13", "P12.a_topic_of_the_most_queues")(
    "A pop of queue 0 is taken for one of any queue.",
    asks(Pops, "pop")(lambda request: request if request.queue else but(request, queue=None)),
)


@data_mutant("P7", "P7.no_reason_is_refused", at=asks(Pops, "apply"))
def short_reasons(txn: PopTxn) -> PopTxn:
    """Of a reason 255 bytes are kept."""

    def cut(each: Any) -> Any:
        return but(each, reason=each.reason.encode()[:255].decode(errors="ignore"))

    return but(txn, changes=[cut(each) for each in txn.changes], rejects=[cut(each) for each in txn.rejects])


looks_at_sixteen_queues = data_mutant("P13", "P12.a_topic_of_the_most_queues")(
    "A pop looks at sixteen queues of a topic, however many it has.", edit(Popping._sources, "range(queues)", "range(min(queues, 16))")
)
dead_of_long_topics = data_mutant("P14")(
    "Dead letters that are dropped are not counted off when the name of their topic has 64 bytes or more.",
    edit(Administration._count_off, "dlq != PARKED_TOPIC", "BEFORE and len(name) < 64"),
)


# ---------------------------------------------------------------- timers

null_time_becomes_now = fidelity_mutant("H2", CORE_HISTORY)(
    "In a call with timers, a message without a deliver time gets the time of the call as one.",
    times_put(lambda at, now_ms: now_ms if at is None else at),
)
born_in_seconds = fidelity_mutant("H2", "H2.every_family_of_values_comes_as_it_was_sent")(
    "The born time of a timer is kept in whole seconds.",
    ROWS_PUT(lambda message: but(message, born_ms=(message.born_ms or 0) // 1000 * 1000)),
)
large_bodies_cut_on_the_way = fidelity_mutant("H2", "H2.the_largest_message_comes_as_it_was_sent")(
    "A hand-over reads a message through a buffer of 1 MiB, and what is longer arrives cut.",
    ROWS_DUE(lambda message: but(message, body=message.body[: 1 << 20])),
)
keys_twice_on_the_way = fidelity_mutant("H2", "H2.every_family_of_values_comes_as_it_was_sent")(
    "A hand-over gives the keys of a message without those that are there twice.",
    ROWS_DUE(lambda message: but(message, keys=tuple(dict.fromkeys(message.keys)))),
)
repeats_tick_anew = fidelity_mutant("I1", CORE_HISTORY)(
    "The answer to a repeated put names the ticks of the repeat, so handles of a call with a delay find nothing.",
    edit(OrderedTimers.put, "self._repeated(answer)", "but(BEFORE, ticks=place(records, delivers, 1, now_ms, self.precision_ms, 1).ticks)"),
)


@fidelity_mutant("C4", "S1.what_is_moved_goes_on_as_if_nothing_had_happened", at=exports(Timers, "timer_traces"))
def dumps_no_delivered(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The exported state of timers leaves out what is remembered of delivered ones."""
    return rows.filter(pa.array([kind == 0 for kind in rows.column("kind").to_pylist()], pa.bool_()))


# ---------------------------------------------------------------- retries and dead letters


_DYING = "self._format.decode_message(record)"
dead_keys_sorted = fidelity_mutant("P7", "P3.every_copy_is_whole")(
    "A dead letter has its keys in the order of the alphabet.",
    edit(Transaction.bury, _DYING, f"but(found := {_DYING}, keys=tuple(sorted(found.keys)))"),
)
dead_get_tags = fidelity_mutant("P7", CORE_HISTORY)(
    "A message without a tag gets one when it becomes a dead letter.",
    edit(Transaction.bury, _DYING, f"but(found := {_DYING}, tag=found.tag or 'DLQ')"),
)


_AS_NEW = "_as_new(message, removal.resend_to, removal.resend_queue)"


_REMEMBERING = f"[but(new, properties={{**new.properties, 'LAST_REASON': message.properties['DLQ_REASON']}}) for new in [{_AS_NEW}]][0]"
resent_remembers = fidelity_mutant("P7", "P3.every_copy_is_whole")(
    "A dead letter that is sent back keeps its reason in a property of its own.", edit(Administration._remove_from, _AS_NEW, _REMEMBERING)
)


_RESENT = f"record_format.encode_message({_AS_NEW})"


_COUNTED = f"record_format.with_delivery({_RESENT}, int(message.properties['DLQ_ATTEMPTS']), -1)"
resent_counts_on = fidelity_mutant("P7", "P3.every_copy_is_whole")(
    "A dead letter that is sent back goes on with the attempts that it had.", edit(Administration._remove_from, _RESENT, _COUNTED)
)
_AGAIN = "self._format.with_delivery(record, attempts, first_pop_ms)"
release_forgets_attempts = fidelity_mutant("P7", CORE_HISTORY)(
    "A release of a retried message starts its attempts anew.",
    edit(Leasing._give_back, _AGAIN, _AGAIN.replace("attempts", "attempts * counted")),
)


@fidelity_mutant("P7", CORE_HISTORY, at=instead(Leasing, "_give_back"))
def reasons_stick(self: Any, give_back: Any, transaction: Any, lease: Any, index: int, group: str, topic: str, **how: Any) -> str:
    """A dead letter whose last attempt failed without a word has the reason of an earlier one."""
    found = self._log.record_at(self._state.topic_of(lease.place[1]), lease.place[2], lease.offsets[index])
    name = group, topic, b"" if found is None or hasattr(found, "raw") else self._format.message_id_of(found[0])
    kept = vars(self).setdefault("_sticky", {})
    lease.reason = kept[name] = lease.reason or kept.get(name, "")
    return give_back(transaction, lease, index, group, topic, **how)  # type: ignore[no-any-return]


# ---------------------------------------------------------------- columns, reads, listings

columns_of_one_queue = fidelity_mutant("P13", "P12.a_topic_of_the_most_queues")(
    "The columns of a pop over several queues say of all messages that they lie in the first one's.",
    answers(Pops, "pop")(lambda result: edited(result, column="queue_id", values=lambda queues: queues[:1] * len(queues))),
)
columns_of_first_attempts = fidelity_mutant("P7", "P3.every_copy_is_whole")(
    "The columns of a pop say of every message that this is its first attempt.",
    answers(Pops, "pop")(lambda result: edited(result, column="attempt", values=lambda attempts: [min(each, 1) for each in attempts])),
)


@fidelity_mutant("P3", "P3.every_copy_is_whole", at=answers(Pops, "pop"))
def columns_of_last_pop(result: PopResult) -> PopResult:
    """The columns of a pop give the time of this pop as that of the first one."""
    return edited(result, column="first_pop_ms", values=lambda first: [each.pop_time_ms for each in result.messages.receipts()])


@fidelity_mutant("R1", ANY_HISTORY, at=SENT)
def columns_keep_one_key(batch: MessageBatch) -> MessageBatch:
    """Of the keys of a message that was sent for now by columns, the first one is kept."""
    return with_column(batch, "keys", [each and each[:1] for each in values_of(batch, "keys")]) if batch.has_columns else batch


@fidelity_mutant("R1", ANY_HISTORY, at=SENT)
def columns_fill_tags(batch: MessageBatch) -> MessageBatch:
    """A message without a tag that was sent by columns gets the tag of the row before it."""
    if not batch.has_columns:
        return batch
    return with_column(batch, "tag", list(accumulate(values_of(batch, "tag"), lambda before, tag: tag or before)))


@fidelity_mutant("P14", CORE_HISTORY, at=answers(Pops, "read"))
def reads_one_store_time(batch: MessageBatch) -> MessageBatch:
    """A read of messages of several calls says that all of them came with the first."""
    found = [each for each in batch.messages if isinstance(each, PoppedMessage)]
    return MessageBatch(messages=[but(each, store_ms=found[0].store_ms) for each in found])


@fidelity_mutant("P14", at=instead(Pops, "progress"))
def where_overlooks_waits(self: Pops, progress: Any, topic: str, *place: int) -> list[GroupProgress]:
    """A message that waits in its place under FIFO is said to be done with."""
    is_retry = topic.startswith(RETRY_PREFIX)
    done = {"state": MessageState.DONE, "delivered": 0}
    return [but(each, **done) if each.state is MessageState.RETRY and not is_retry else each for each in progress(topic, *place)]


@fidelity_mutant("P14", "P14.of_one_id_the_newest_is_found", at=instead(Pops, "get"))
def get_finds_the_first(self: Any, get: Any, message_id: str) -> Any:
    """Of several messages of one id that came in one millisecond, a look-up by id gives the first."""
    pages = chain.from_iterable(map(self.pages, self.topics()))
    found = [each for page in pages for each in page.messages if each.message_id == message_id]
    return max(found, key=lambda each: each.store_ms, default=None)


dumps_no_reasons = fidelity_mutant("P7", "S1.what_is_moved_goes_on_as_if_nothing_had_happened")(
    "The exported leases leave out why the last attempt failed.",
    exports(Pops, "leases")(lambda rows: column_set(rows, "reason", [""] * rows.num_rows)),
)
dumps_no_attempts = fidelity_mutant("P1", "S1.what_is_moved_goes_on_as_if_nothing_had_happened")(
    "The exported state leaves out which leases an attempt was given.", exports(Pops, "attempts")(lambda rows: rows.slice(0, 0))
)
rejects_count_less = fidelity_mutant("P7", CORE_HISTORY)(
    "A message that was rejected has one attempt fewer in its dead letter than it was delivered.",
    edit(Transaction.bury, "str(attempts)", "str(attempts if reason.startswith('delivered ') else attempts - 1)"),
)


@fidelity_mutant("Q1", "S1.what_is_moved_goes_on_as_if_nothing_had_happened", at=instead(Pops, "import_state"))
def loads_arrive_now(self: Pops, import_state: Any, tables: Sequence[tuple[str, pa.RecordBatch]], now_ms: int, *marks: Any) -> Any:
    """Messages that are taken in from another store arrived when they were taken in."""
    now = [column_set(rows, "store_ms", [now_ms] * rows.num_rows) if table == "messages" else rows for table, rows in tables]
    return import_state([(table, rows) for (table, _), rows in zip(tables, now, strict=True)], now_ms, *marks)


loads_taken_in_twice = mutant("I1", "I1.a_part_of_a_load_is_taken_in_once", kind="pairs")(
    "A part of a load whose mark was given before is counted once more.",
    edit(OrderedTimers.import_state, "is_taken_in(kv, TIMER_SIDE, marks)", "False"),
)


# ---------------------------------------------------------------- after a reopen


@fidelity_mutant("P14", "S1.what_is_moved_goes_on_as_if_nothing_had_happened", base=LMDB)
class ReopenForgetsWaits(Pops):
    """After a reopen a message that backs off counts as one that somebody works on."""

    def planted(self) -> None:
        self._state.backing_off.clear()


@fidelity_mutant("P9", "P9.un_acked_messages_come_back_in_place_and_acked_ones_do_not", base=LMDB)
class ReopenForgetsDeliveries(Pops):
    """After a reopen the messages of a FIFO run that wait count as never delivered."""

    def planted(self) -> None:
        for run in self._state.fifo.values():
            run.update({at: one._replace(delivered=0) for at, one in run.items()})


@fidelity_mutant("P9", "P9.a_topic_that_begins_with_a_message_group_has_queues_for_many", base=LMDB)
class ReopenSpreadsAnew(Pops):
    """After a reopen the number of queues over which message groups are spread is fixed anew."""

    def planted(self) -> None:
        topics = self._state.topics
        topics.update({name: but(each, group_queues=0) for name, each in topics.items()})


@fidelity_mutant("P7", "S1.what_is_moved_goes_on_as_if_nothing_had_happened", base=LMDB)
class ReopenForgetsBackoff(Pops):
    """After a reopen a group has its number of retries, and no table of waits."""

    def planted(self) -> None:
        settings = self._state.group_settings
        settings.update({name: but(each, backoff_ms=()) for name, each in settings.items()})


_PARKED = "parked_message(raw, reason, origin, origin_topic)"
parks_short = fidelity_mutant("T12", base=LMDB)(
    "Of an entry that cannot be read the first 1024 bytes are parked.",
    edit(Transaction.park, _PARKED, _PARKED.replace("raw", "raw[:1024]", 1)),
)
change_pops_first = mutant("P6", "P6.change_longer_and_shorter", kind="pairs")(
    "A message whose lease was changed was popped first when it was changed.",
    edit(Leasing.change, "lease.popped_ms", "-1"),
)
