"""``StoreCopy``: a copy of the files of a store that goes on meanwhile.

A check point is made, while no other call runs. Then everything is copied, while calls go on: the log up to the check point, all other
files as they are. The copy is the store as of the check point, one moment between two calls:

1. Of the log, the bytes before the check point never change. Files of it go with ``Ledger.release_log``, which waits for the copy.
2. The check point says of every other file which part it vouches for. Between two check points that part never changes: what calls write
   is behind it (``files.units``), and everything else, units rewritten, index files, the wheel's snapshot, files that go, waits for
   the next one. No check point is made that can wait for the copy (``Ledger.copying``). One that cannot is that of a call which sends to a
   queue of the name of one that was removed, whose files must be gone. An open after an interrupt cannot wait either. Both count as
   ``Ledger.rewrites`` before they change anything. Then all that was copied except the log is copied again, as of a newer check point.
3. What is behind that part in a copied file, whole, half or not at all, is what a crash may leave there, too.

So an open of the copy finds what a crash right behind the check point could leave (``ledger``). A copy that is outrun again and again is
made while no other call runs in the end; by then most of the log is there.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rmqstore.engine.kv.base import Alone
from rmqstore.engine.kv.directory import copy_file, copy_tree

if TYPE_CHECKING:
    from rmqstore_wheel.log.ledger import Ledger

LOG: Final = "commitlog"
LOCK: Final = "lock"
ABORT: Final = "abort"
"""Files of a store that is open, which no copy has (``broker.files``)."""

_ATTEMPTS: Final = 3
"""So often a copy may be outrun before it is made while no other call runs."""


class StoreCopy:
    """One copy, into the directory ``copy``, which is not there."""

    def __init__(self, ledger: Ledger, copy: Path) -> None:
        self._ledger = ledger
        self._copy = copy
        self._tail = 0
        self._copied = 0
        self._starts: list[int] = []
        self._rewrites = 0

    def make(self, alone: Alone) -> None:
        """Make it; ``alone`` keeps other calls out."""
        for _ in range(_ATTEMPTS):
            alone(self._begin)
            if self._is_made():
                return
        alone(self._make_alone)

    def _make_alone(self) -> None:
        self._begin()
        self._is_made()

    def _begin(self) -> None:
        """Choose the moment."""
        ledger = self._ledger
        ledger.make_check_point()
        self._tail, self._rewrites = ledger.log.tail, ledger.rewrites
        self._starts = [start for start in ledger.log.chain.starts if start < self._tail]

    def _is_made(self) -> bool:
        """Copy what is not there yet; says whether nothing else than the moment's came into it."""
        try:
            self._copy_log()
            copy_tree(self._ledger.root, self._copy, without=(LOG, LOCK, ABORT))
        except FileNotFoundError:
            if self._ledger.rewrites == self._rewrites:
                raise
        if self._ledger.rewrites == self._rewrites:
            return True
        for path in self._copy.iterdir():
            if path.name != LOG:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        return False

    def _copy_log(self) -> None:
        log = self._ledger.log
        (self._copy / LOG).mkdir(parents=True, exist_ok=True)
        for start in self._starts:
            stop = min(self._tail - start, log.file_bytes)
            if (begin := max(self._copied - start, 0)) < stop:
                source = log.chain.path_of(start)
                copy_file(source, self._copy / LOG / source.name, begin, stop)
        self._copied = self._tail
