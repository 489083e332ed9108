"""``rmqstore timers``: how many timers are pending and when they are due, as a histogram and as a list."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import Annotated, Any, Final

import msgspec
import typer

from rmqstore.cli import show, stores
from rmqstore.cli.options import JsonOption, StoreArgument, TopicOption, examples, refuse_together
from rmqstore.cli.show import Cell
from rmqstore.cli.times import (
    DAY_MS,
    HOUR_MS,
    MINUTE_MS,
    SECOND_MS,
    clock_and_relative,
    clock_time,
    duration_option,
    local,
    relative,
    time_option,
)
from rmqstore.contract import PendingTimer
from rmqstore.late import np
from rmqstore.message import MAX_TIME_MS
from rmqstore.store.reader import Reader

_WIDTHS_MS: Final = tuple(
    number * unit
    for unit, numbers in (
        (1, (1, 2, 5, 10, 20, 50, 100, 200, 500)),
        (SECOND_MS, (1, 2, 5, 10, 15, 30)),
        (MINUTE_MS, (1, 2, 5, 10, 15, 30)),
        (HOUR_MS, (1, 2, 3, 6, 12)),
        (DAY_MS, (1, 2, 7, 14, 28, 91, 182, 364)),
    )
    for number in numbers
)
_PIPE_WIDTH: Final = 80
_PAGE: Final = 1000


class Histogram(msgspec.Struct, frozen=True):
    """Pending timers by due time: ``counts[i]`` have ``edges_ms[i] <= due < edges_ms[i + 1]``; and how many are outside."""

    edges_ms: tuple[int, ...]
    counts: tuple[int, ...]
    before: int
    after: int
    total: int
    earliest_ms: int | None
    latest_ms: int | None


@examples(
    "rmqstore timers data",
    "rmqstore timers data --within 1h --buckets 12",
    "rmqstore timers data --from 2026-12-01 --to 2027-01-01 --topic orders",
    "rmqstore timers data --list --within 10m",
)
def timers(
    store: StoreArgument,
    within: Annotated[str | None, typer.Option(metavar="DURATION", help="From now on so far: 10m, 1h, 7d.")] = None,
    from_: Annotated[str | None, typer.Option("--from", metavar="TIME", help="Due then or later; now when left out.")] = None,
    to: Annotated[str | None, typer.Option(metavar="TIME", help="Due before then; the last timer when left out.")] = None,
    buckets: Annotated[int, typer.Option(metavar="N", min=1, max=1000, help="Bars at most; their width is a round time.")] = 20,
    as_list: Annotated[bool, typer.Option("--list", help="List the timers themselves, overdue ones too.")] = False,
    topic: TopicOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show when the pending timers are due.

    Total, earliest, latest, and a histogram of due times. Overdue timers, which wait for somebody to open the store, are counted apart.
    --list shows each timer with the handle that cancels it.
    """
    refuse_together(within=within, to=to)
    now_ms = stores.now_ms()
    start_ms = None if from_ is None else time_option("--from", from_)
    end_ms = None if to is None else time_option("--to", to)
    if within is not None:
        end_ms = min((now_ms if start_ms is None else start_ms) + duration_option("--within", within, minimum=1), MAX_TIME_MS)
    begin_ms = now_ms if start_ms is None and not as_list else start_ms
    if begin_ms is not None and end_ms is not None and end_ms <= begin_ms:
        what = "it must be later than --from" if start_ms is not None else "it must be later than now, unless --from is given"
        raise typer.BadParameter(what, param_hint="--to")
    with stores.reading(store) as opened:
        stores.require_topic(opened, topic, or_timers=True)
        if as_list:
            listed = _pending(opened, start_ms or 0, end_ms, topic)
            if as_json:
                show.document_with(show.times_document(now=now_ms), "timers", map(_document, listed))
            else:
                _list(listed, now_ms)
            return
        histogram = _histogram(opened, now_ms if begin_ms is None else begin_ms, end_ms, buckets, topic)
    if as_json:
        show.document(_histogram_document(histogram, now_ms))
    else:
        _draw(histogram, now_ms, is_from_now=start_ms is None, has_end=end_ms is not None)


# ---------------------------------------------------------------- the histogram


def _histogram(store: Reader, start_ms: int, end_ms: int | None, buckets: int, topic: str | None) -> Histogram:
    due_ms = None if topic is None else np.array([timer.deliver_at_ms for timer in _pending(store, 0, None, topic)], np.int64)
    if due_ms is None:
        whole = store.pending()
        total, earliest_ms, latest_ms = whole.total, whole.earliest_ms, whole.latest_ms
    else:
        total = len(due_ms)
        earliest_ms, latest_ms = (int(due_ms.min()), int(due_ms.max())) if total else (None, None)
    if end_ms is None:
        end_ms = max(start_ms if latest_ms is None else latest_ms, start_ms) + 1
    edges = edges_between(start_ms, end_ms, buckets)
    asked = sorted({0, *edges, MAX_TIME_MS})
    if due_ms is None:
        counts = dict(zip(asked, store.pending(asked).counts, strict=False))
    else:
        counts = dict(zip(asked, np.diff(np.searchsorted(due_ms := np.sort(due_ms), asked)).tolist(), strict=False))
    inside = tuple(int(counts[edge]) for edge in edges[:-1])
    before = int(counts[0]) if edges[0] > 0 else 0
    return Histogram(tuple(edges), inside, before, total - before - sum(inside), total, earliest_ms, latest_ms)


def edges_between(start_ms: int, end_ms: int, buckets: int) -> list[int]:
    """Return the edges of at most ``buckets`` bars of a round width in local time; the first and the last bar may be cut short.

    They are one bar where no width is enough: from before the epoch of local time to after it.
    """
    offset_ms = _offset_ms(start_ms)
    widths_ms = chain(_WIDTHS_MS, (_WIDTHS_MS[-1] << doubled for doubled in range(1, MAX_TIME_MS.bit_length())))
    fitting_ms = (width for width in widths_ms if -(-(end_ms + offset_ms) // width) - (start_ms + offset_ms) // width <= buckets)
    width_ms = next(fitting_ms, None)
    if width_ms is None:
        return [start_ms, end_ms]
    first_ms = (start_ms + offset_ms) // width_ms * width_ms - offset_ms + width_ms
    return [start_ms, *range(first_ms, end_ms, width_ms), end_ms]


def _offset_ms(ms: int) -> int:
    moment = local(ms)
    offset = None if moment is None else moment.utcoffset()
    return 0 if offset is None else round(offset.total_seconds()) * SECOND_MS


def _draw(histogram: Histogram, now_ms: int, *, is_from_now: bool, has_end: bool) -> None:
    if not histogram.total:
        show.line("No timer is pending.")
        return
    if histogram.earliest_ms is not None and histogram.latest_ms is not None:
        show.fields(
            (
                ("pending", show.count(histogram.total, "timer")),
                ("earliest", clock_and_relative(histogram.earliest_ms, now_ms)),
                ("latest", clock_and_relative(histogram.latest_ms, now_ms)),
            )
        )
    bars = [(text, number) for text, number in zip(_labels(histogram.edges_ms, is_from_now), histogram.counts, strict=True)]
    inside = sum(histogram.counts)
    show.line()
    rows = [("overdue" if is_from_now else "before", histogram.before, "")] if histogram.before else []
    rows += [(text, number, "cyan") for text, number in bars if inside]
    rows += [("later", histogram.after, "")] if histogram.after else []
    out = show.console()
    for drawn in show.bars(out, rows, out.width if out.is_terminal else _PIPE_WIDTH):
        show.line(drawn)
    show.line()
    first, last = histogram.edges_ms[0], histogram.edges_ms[-1]
    if len(bars) > 1 and inside:
        moment = local(first)
        offset = "+00:00" if moment is None else moment.isoformat()[-6:]
        show.note(f"A bar starts at its time, local time with offset {offset}; {show.count(inside, 'timer')} in all bars.")
    if not inside:
        show.note(f"No timer is due from {clock_time(first)} {f'to {clock_time(last)}' if has_end else 'on'}.")
    if histogram.before and is_from_now:
        show.note("Overdue timers are delivered as soon as a program opens the store, for example `rmqstore pop`.")


def _labels(edges_ms: Sequence[int], is_from_now: bool) -> list[str]:
    """Return the time at which each bar starts, as short as it can be told."""
    moments = [moment for ms in (*edges_ms[:-1], edges_ms[-1] - 1) if (moment := local(ms)) is not None]
    if len(moments) < len(edges_ms):
        return [clock_time(edge) for edge in edges_ms[:-1]]
    inner = edges_ms[1:-1]
    has_date = len({moment.date() for moment in moments}) > 1
    if inner and all((edge + _offset_ms(edge)) % DAY_MS == 0 for edge in inner):
        form = "%Y-%m-%d %a"
    elif any(edge % SECOND_MS for edge in inner):
        form = "%H:%M:%S.%f"
    elif any(edge % MINUTE_MS for edge in inner):
        form = "%H:%M:%S"
    else:
        form = "%H:%M"
    form = f"%Y-%m-%d {form}" if has_date and not form.startswith("%Y") else form
    labels = [moment.strftime(form) for moment in moments[:-1]]
    labels = [label[:-3] for label in labels] if form.endswith("%f") else labels
    return ["now", *labels[1:]] if is_from_now else labels


def _histogram_document(histogram: Histogram, now_ms: int) -> dict[str, Any]:
    edges = histogram.edges_ms
    return {
        **show.times_document(now=now_ms, earliest=histogram.earliest_ms, latest=histogram.latest_ms),
        "total": histogram.total,
        "before": histogram.before,
        "after": histogram.after,
        "buckets": [
            {**show.times_document(**{"from": start, "to": end}), "count": number}
            for start, end, number in zip(edges, edges[1:], histogram.counts, strict=False)
        ],
    }


# ---------------------------------------------------------------- the timers themselves


def _pending(store: Reader, from_ms: int, to_ms: int | None, topic: str | None) -> Iterator[PendingTimer]:
    return (timer for timer in stores.pending_timers(store, from_ms, to_ms) if topic is None or timer.message.topic == topic)


def _row(timer: PendingTimer, now_ms: int) -> dict[str, Cell]:
    message, due_ms = timer.message, timer.deliver_at_ms
    found: dict[str, Cell] = {"due": clock_time(due_ms), "in": relative(due_ms, now_ms), "topic": message.topic, "tag": message.tag}
    return found | {"keys": ",".join(message.keys), "id": message.message_id, "handle": timer.handle.text()}


def _list(timers: Iterator[PendingTimer], now_ms: int) -> None:
    listed = 0
    while page := list(islice(timers, _PAGE)):
        show.table((_row(timer, now_ms) for timer in page), long=["id", "handle"])
        listed += len(page)
    show.note(f"{show.count(listed, 'timer')}; `rmqstore cancel STORE HANDLE` stops one." if listed else "No such timer is pending.")


def _document(timer: PendingTimer) -> dict[str, Any]:
    return {**show.message_document(timer.message), **show.times_document(deliver_at=timer.deliver_at_ms), "handle": timer.handle.text()}
