"""The ``memory`` engine, and how to write an engine of your own.

An engine is three things, one module each:

1. ``plugin.py`` announces it: an ``EngineInfo`` with its name, what it can do, and the import string of the class below. It is imported
   whenever engines are listed, so it must not import the database. The distribution points to it in its ``pyproject.toml``::

       [project.entry-points.rmqstore]
       memory = "rmqstore_memory.plugin"

2. ``engine.py`` (this file) opens a directory. The directory is made by the framework, belongs to this engine alone, and is empty the
   first time. ``open`` must take care of four things:

   - *somebody else has it open*: ``StoreLockedError``;
   - *somebody else's files are in it*, or a newer version's: ``FormatVersionError``;
   - *a creation that crashed half way*: start afresh, never fail;
   - *damage*: ``CorruptStoreError`` with the file's name.

   ``rmqstore.engine.kv.directory.EngineHome`` does the first three for an engine that keeps files; the ``lmdb`` engine shows how.

3. ``kv.py`` adapts the database. If it keeps keys in order, adapt it to ``OrderedKV`` and hand that to ``open_session``, which brings
   timers, pops, leases, retries and dead letters with it. A database that only knows durable transactions implements the smaller
   ``rmqstore.engine.kv.buffered.Base`` instead. An engine with a design of its own implements ``TimerStore`` and ``PopStore`` directly.

Then run the conformance suite against it: it reads the declared capabilities and tries to refute them.
"""

from __future__ import annotations

from pathlib import Path

from rmqstore.contract.engine import Engine, EngineOptions, EngineSession
from rmqstore.engine.schema import SPACES
from rmqstore.engine.session import open_session
from rmqstore.errors import FormatVersionError
from rmqstore_memory.kv import MemoryKV


class MemoryEngine(Engine):
    """Keeps everything in memory and nothing on disk: each open begins empty, and says so by declaring durability NONE."""

    def open(self, directory: Path, options: EngineOptions) -> EngineSession:
        """Open an empty store. The directory stays empty; one with files in it holds messages of another engine, which would be hidden."""
        found = next(directory.iterdir(), None)
        if found is not None:
            raise FormatVersionError(f"{directory} holds {found.name!r} of another engine; engine 'memory' would not see what is in it")
        return open_session(MemoryKV(str(directory), len(SPACES)), options)
