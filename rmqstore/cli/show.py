"""What all commands print alike: tables, JSON, messages, notes.

Data goes to stdout, notes and progress to stderr. On a terminal tables fit its width; in a pipe nothing is cut, wrapped or coloured.
Texts that came from messages are shown without control characters, so that no message can drive a terminal.
"""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, TextIO, TypeAlias

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, TimeElapsedColumn
from rich.text import Text

from rmqstore.cli.times import iso
from rmqstore.message import Message, PoppedMessage

Cell: TypeAlias = str | int | Text | None
"""What a table shows: None as nothing, a number with its thousands apart, a text without control characters."""

_GAP = 2
_INDENT = "    "
_PREVIEW = 60
_EIGHTHS = " ▏▎▍▌▋▊▉█"
_LEAST_BAR = 5


def console(*, stderr: bool = False) -> Console:
    """Return the console of stdout, or of stderr for progress."""
    out = Console(stderr=stderr, highlight=False, emoji=False, markup=False)
    out.width = max(out.width, 1)  # COLUMNS=0 says that nobody knows; of that width nothing is printed
    return out


def check_stdout() -> None:
    """Refuse to pop where a program has no stdout: what is printed there is lost without an error, and would be acked.

    Raises:
        OSError: it is closed.
    """
    if sys.stdout is None:
        raise OSError("stdout is closed; send it to /dev/null to see nothing")


def stdin() -> TextIO:
    """Return stdin.

    Raises:
        OSError: it is closed.
    """
    if sys.stdin is None:
        raise OSError("stdin is closed; what is to be read from it comes by < FILE")
    return sys.stdin


def progress(text: str, *amounts: ProgressColumn | str) -> Progress:
    """Return bars on stderr, which are there on a terminal only and gone at the end; a column that is a text may name parts of the task."""
    out = console(stderr=True)
    return Progress(text, BarColumn(), *amounts, TimeElapsedColumn(), console=out, transient=True, disable=not out.is_terminal)


def line(cell: str | Text = "") -> None:
    """Print one line of data as it is."""
    if isinstance(cell, str):
        typer.echo(cell)
    else:
        console().print(cell, soft_wrap=True)


def note(text: str) -> None:
    """Print a remark for people on stderr."""
    typer.echo(text, err=True)


def plain(text: str) -> str:
    """Return a text with everything that is not printable written as an escape."""
    return text if text.isprintable() else "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)


def count(number: int, noun: str, plural: str = "") -> str:
    """Return ``1 message`` or ``1,234 messages``."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


# ---------------------------------------------------------------- tables


def table(rows: Iterable[Mapping[str, Cell]], *, long: Collection[str] = (), right: Collection[str] = ()) -> None:
    """Print rows, which name their cells alike; numbers go to the right.

    Args:
        long: columns of ids, handles and the like; where a terminal is too narrow, the widest ones go to lines below each row.
        right: columns of what is no number and goes to the right all the same.
    """
    out, given = console(), list(rows)
    if not given:
        return
    headings = list(given[0])
    to_right = {*right, *(each for each in headings if all(isinstance(row[each], int | None) for row in given))}
    shown = [{heading: _shown(cell) for heading, cell in row.items()} for row in given]
    widths = {heading: max(len(heading), *(row[heading].cell_len for row in shown)) for heading in headings}
    beside, below = list(headings), []
    for heading in sorted(long, key=lambda each: -widths[each]):
        if out.is_terminal and sum(widths[each] + _GAP for each in beside) - _GAP > out.width:
            beside.remove(heading)
            below.append(heading)
    label_width = max(map(len, below), default=0)

    def line_of(row: Mapping[str, Text]) -> Text:
        parts: list[Text] = []
        for heading in beside:
            cell, padding = row[heading], " " * (widths[heading] - row[heading].cell_len)
            parts.append(Text.assemble(padding, cell) if heading in to_right else Text.assemble(cell, padding))
        line = Text(" " * _GAP).join(parts)
        line.rstrip()
        return line

    lines = [line_of({heading: Text(heading, "bold") for heading in headings})]
    for row in shown:
        lines.append(line_of(row))
        for heading in (each for each in headings if each in below and row[each].plain):
            lines.append(Text.assemble(f"{_INDENT}{heading.ljust(label_width)}  ", row[heading], style="dim"))
    out.print(Text("\n").join(lines), soft_wrap=True)


def _shown(cell: Cell) -> Text:
    if isinstance(cell, Text):
        return cell
    return Text(f"{cell:,}" if isinstance(cell, int) else plain(cell or ""))


def fields(pairs: Iterable[tuple[str, str]]) -> None:
    """Print names and values below each other, the values aligned."""
    given = [(name, value) for name, value in pairs if value]
    width = max((len(name) for name, _ in given), default=0)
    for name, value in given:
        line(Text.assemble((name.ljust(width), "bold"), "  ", value))


# ---------------------------------------------------------------- bars


def bars(out: Console, rows: Sequence[tuple[str, int, str]], width: int) -> list[Text]:
    """Return lines with a label on the left, a number on the right, and a bar in a colour between them.

    A number without a colour has no bar, and makes no other bar small.
    """
    shown = [f"{number:,}" for _, number, _ in rows]
    label_width, number_width = max(len(label) for label, _, _ in rows), max(map(len, shown))
    room = max(width - label_width - number_width - 2 * _GAP, _LEAST_BAR)
    most = max((number for _, number, colour in rows if colour), default=0)
    lines = []
    for (label, number, colour), text in zip(rows, shown, strict=True):
        drawn = bar(number, most, room, is_ascii=out.options.ascii_only) if colour else ""
        padding = " " * (room - len(drawn) + _GAP)
        lines.append(Text.assemble(label.ljust(label_width + _GAP), (drawn, colour), padding, text.rjust(number_width)))
    return lines


def bar(number: int, most: int, width: int, *, is_ascii: bool = False) -> str:
    """Return a bar of ``number / most`` of ``width`` cells, in steps of an eighth; what is not zero is seen."""
    if not number or not most:
        return ""
    if is_ascii:
        return "#" * max(number * width // most, 1)
    full, rest = divmod(max(number * width * 8 // most, 1), 8)
    return "█" * full + _EIGHTHS[rest].strip()


# ---------------------------------------------------------------- JSON


def document(content: Mapping[str, Any]) -> None:
    """Print one JSON document."""
    typer.echo(json.dumps(content, indent=2))


def json_line(content: Mapping[str, Any]) -> None:
    """Print one JSON object on a line of its own."""
    typer.echo(json.dumps(content))


def document_with(content: Mapping[str, Any], name: str, items: Iterable[Mapping[str, Any]]) -> None:
    """Print one JSON document whose last member ``name`` is a list of any length, written as it comes."""
    sys.stdout.write(json.dumps({**content, name: []}, indent=2).removesuffix("[]\n}") + "[")
    separator = "\n    "
    for item in items:
        sys.stdout.write(separator + json.dumps(item))
        separator = ",\n    "
    sys.stdout.write("\n  ]\n}\n" if separator.startswith(",") else "]\n}\n")
    sys.stdout.flush()


def struct_document(struct: msgspec.Struct) -> dict[str, Any]:
    """Return the fields of a struct, each time twice."""
    found: dict[str, Any] = {}
    for name, value in msgspec.structs.asdict(struct).items():
        found |= times_document(**{name.removesuffix("_ms"): value}) if name.endswith("_ms") else {name: value}
    return found


def times_document(**times_ms: int | None) -> dict[str, Any]:
    """Return each time twice: ``name_ms``, and ``name_iso`` as text."""
    found: dict[str, Any] = {}
    for name, ms in times_ms.items():
        found[f"{name}_ms"] = ms
        found[f"{name}_iso"] = iso(ms)
    return found


def message_document(message: Message | PoppedMessage) -> dict[str, Any]:
    """Return a message in JSON's terms, with the names of ``rmqstore.OUT_SCHEMA``; a body that is no text is in ``body_base64``.

    ``send --from-file`` takes such objects again.
    """
    text = _text_of(message.body)
    found: dict[str, Any] = {
        "topic": message.topic,
        "message_id": message.message_id,
        "tag": message.tag,
        "keys": list(message.keys),
        "properties": dict(message.properties),
        "message_group": message.message_group,
        "queue_id": message.queue_id,
        "body": text,
        "body_base64": None if text is not None else base64.b64encode(message.body).decode(),
        **times_document(deliver_at=message.deliver_at_ms, born=message.born_ms),
    }
    if isinstance(message, PoppedMessage):
        found |= {
            "queue_offset": message.queue_offset,
            "attempt": message.attempt,
            **times_document(store=message.store_ms, first_pop=message.first_pop_ms),
        }
    return found


# ---------------------------------------------------------------- messages for people


def _text_of(body: bytes) -> str | None:
    try:
        return body.decode()
    except UnicodeDecodeError:
        return None


def body_lines(body: bytes) -> Iterator[str]:
    """Yield the lines of a body as text when all of it is printable, else one line of base64 that says so."""
    text = _text_of(body)
    if text is not None and text.replace("\n", "").replace("\t", "").isprintable():
        yield from text.removesuffix("\n").split("\n")
    else:
        yield f"base64:{base64.b64encode(body).decode()}"


def body_start(body: bytes, length: int = _PREVIEW) -> str:
    """Return the beginning of a body on one line."""
    text = _text_of(body[: 4 * length + 4]) or _text_of(body)
    if text is None or not text.replace("\n", " ").replace("\t", " ").isprintable():
        shown = "base64:" + base64.b64encode(body[: length * 3 // 4]).decode()
        return shown if len(body) <= length * 3 // 4 else shown.rstrip("=") + "…"
    flat = " ".join(text.split())
    return flat if len(flat) <= length and len(body) <= 4 * length + 4 else flat[: length - 1] + "…"


def words(message: Message | PoppedMessage) -> list[str]:
    """Return tag, keys, message group and properties as ``name=value``, those that there are."""
    found = [f"tag={plain(message.tag)}"] if message.tag else []
    found += [f"keys={plain(','.join(message.keys))}"] if message.keys else []
    found += [f"message-group={plain(message.message_group)}"] if message.message_group else []
    return found + [f"{plain(name)}={plain(value)}" for name, value in message.properties.items()]
