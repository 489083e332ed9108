"""A process that shares a store with others, for tests that kill it: ``python -m tests.server.sharer STORE ENGINE JOURNAL NAME``.

It sends messages, pops and acks them, and writes a line to JOURNAL before and after each step: ``send ID``, ``sent ID``, ``ack ID``,
``acked ID OUTCOME``. Each line of its stdout says ``owner`` or ``follower``. It ends when its stdin does.
"""

from __future__ import annotations

import os
import sys
import threading
from datetime import timedelta

import rmqstore
from rmqstore import Message


def main() -> None:
    path, engine, journal, name = sys.argv[1:]
    ended = threading.Event()
    notes = os.open(journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(*words: object) -> None:
        os.write(notes, (" ".join(map(str, words)) + "\n").encode())

    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    with rmqstore.open(path, share=True, engine=engine, precision_ms=100) as store:
        number = 0
        while not ended.is_set():
            print("owner" if store.is_owner else "follower", flush=True)  # type: ignore[attr-defined]
            for later in (0, 50):
                number += 1
                note("send", f"{name}-{number}")
                store.send(Message("t", f"{name}-{number}".encode()), delay_ms=later)
                note("sent", f"{name}-{number}")
            popped = store.pop("t", "g", max_messages=8, invisible=timedelta(seconds=2), wait=timedelta(milliseconds=20))
            for each in popped:
                note("ack", each.body.decode())
            for each, outcome in zip(popped, store.ack(popped), strict=True):
                note("acked", each.body.decode(), outcome.value)


if __name__ == "__main__":
    main()
