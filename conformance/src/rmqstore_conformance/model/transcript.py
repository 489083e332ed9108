"""What a random history did to its store, as a program that does the same by the public API alone.

Receipts and handles differ from run to run, so the program takes them from the results of its own calls.
"""

from __future__ import annotations

import enum
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa

from rmqstore import Message, PoppedMessage, Store
from rmqstore.contract import Receipt
from rmqstore.store.dead_letters import DeadLetter
from rmqstore_conformance.stores import ANNOUNCED, GIVEN, START_MS, Pair, Stores

CALLS: Final = frozenset(
    "send send_batch cancel cancel_key cancel_keys tick pop pop_batch ack change_invisible release retry_later reject groups.reset_offset "
    "topics.create topics.delete groups.set groups.delete dead_letters.list dead_letters.resend dead_letters.drop snapshot flush "
    "confirm_clock_step engine.pops.pop".split()
)
"""Calls of a store that change it, or that give what such calls are made with."""

_HEAD: Final = """\
import shutil
import tempfile
from pathlib import Path

import pyarrow as pa
import rmqstore
from rmqstore import ManualClock, Message
from rmqstore.schemas import IN_SCHEMA
from rmqstore.contract import PopRequest

root = Path(tempfile.mkdtemp())
clock = ManualClock({start_ms})


def opened(name):
    return rmqstore.open(root / name, clock=clock, services=False, timer_engine={timers!r}, pop_engine={pops!r}, **{settings!r})


"""


class Transcript:
    """Takes down the calls on the stores of one history."""

    def __init__(self, pair: Pair, stores: Stores, settings: dict[str, Any]) -> None:
        self._head = _HEAD.format(start_ms=START_MS, timers=pair.timers, pops=pair.pops, settings={**GIVEN, **settings})
        if ANNOUNCED:
            self._head += f"from rmqstore_conformance.targets import announce\n\nannounce({ANNOUNCED!r})\n"
        self._pair = pair
        self._stores = stores
        self._now_ms = START_MS
        self._lines: list[str] = []
        self._names: dict[str, str] = {}

    def watched(self, name: str, settings: dict[str, Any]) -> Store:
        """Open a store, and return it with its calls taken down."""
        self.note(f"store = opened({name!r})")
        watched: Any = _Watched(self._stores.open(name, **settings), self, "store")
        return watched  # type: ignore[no-any-return]

    def note(self, line: str) -> None:
        """Add a line, for what is no call of the public API."""
        self._tell_the_time()
        self._lines.append(line)

    def _tell_the_time(self) -> None:
        if (now_ms := self._stores.clock.now_ms()) != self._now_ms:
            self._lines.append(f"clock.set({now_ms})")
            self._now_ms = now_ms

    def saved(self) -> Path:
        """Write the program to a file, over that of the history before, and return where."""
        path = Path(tempfile.gettempdir(), f"rmqstore-history-{self._pair}-{os.getpid()}.py")
        path.write_text(self._head + "\n".join([*self._lines, "print(store.verify())"]) + "\n", encoding="utf-8")
        return path

    def call(self, path: str, act: Callable[..., Any], arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """Take down a call, make it, and give names to what it returns."""
        self._tell_the_time()
        given = [self._literal(each) for each in arguments]
        given += [f"{name}={self._literal(each)}" for name, each in options.items()]
        name = f"r{len(self._lines)}"
        self._lines.append(f"{name} = {path}({', '.join(given)})")
        result = act(*arguments, **options)
        self._name(name, result)
        return result

    def _name(self, name: str, result: Any) -> None:
        """Remember how the program gets at the receipts and handles of a result."""
        if isinstance(result, Sequence) and not isinstance(result, (str, bytes)):
            for at, each in enumerate(result):
                self._name(f"{name}[{at}]", each)
        elif callable(messages := getattr(result, "messages", None)):
            for at, each in enumerate(messages()):
                self._name(f"{name}.messages()[{at}]", each)
        elif messages is not None:
            self._name(f"{name}.messages", messages)
        if isinstance(result, DeadLetter):
            self._names[_place_of(result)] = name
        for field in ("receipt", "handle"):
            found = getattr(result, field, None)
            text = found.text() if isinstance(found, Receipt) else found
            if isinstance(text, str) and text:
                self._names[text] = f"{name}.{field}"

    def _literal(self, value: Any) -> str:
        if isinstance(value, str):
            return self._names.get(value, repr(value))
        if isinstance(value, Receipt):
            return self._literal(value.text())
        if isinstance(value, PoppedMessage):
            return self._names.get(value.receipt or "", repr(value.receipt)).removesuffix(".receipt")
        if isinstance(value, DeadLetter):
            return self._names[_place_of(value)]
        if isinstance(value, (list, tuple)):
            return f"[{', '.join(map(self._literal, value))}]"
        if isinstance(value, enum.Enum):
            return f"rmqstore.{type(value).__name__}.{value.name}"
        if isinstance(value, Path):
            return f"root / {str(value.relative_to(self._stores.root))!r}"
        if isinstance(value, (pa.RecordBatch, pa.Table)):
            return f"pa.RecordBatch.from_pylist({value.to_pylist()!r}, schema=IN_SCHEMA)"
        if isinstance(value, msgspec.Struct):
            fields = {name: getattr(value, name) for name in value.__struct_fields__}
            given = {name: each for name, each in fields.items() if not (isinstance(value, Message) and each in (None, (), {}))}
            return f"{type(value).__name__}({', '.join(f'{name}={self._literal(each)}' for name, each in given.items())})"
        return repr(value)


def _place_of(letter: DeadLetter) -> str:
    return f"letter {letter.message.topic} {letter.message.queue_id} {letter.message.queue_offset}"


class _Watched:
    """A store, or a part of it, of which some calls are taken down."""

    def __init__(self, watched: Any, transcript: Transcript, path: str) -> None:
        self._watched = watched
        self._transcript = transcript
        self._path = path

    def __getattr__(self, name: str) -> Any:
        found, path = getattr(self._watched, name), f"{self._path}.{name}"
        if path.removeprefix("store.") in CALLS:
            return lambda *arguments, **options: self._transcript.call(path, found, arguments, options)
        if name in ("topics", "groups", "dead_letters", "engine", "pops"):
            return _Watched(found, self._transcript, path)
        return found
