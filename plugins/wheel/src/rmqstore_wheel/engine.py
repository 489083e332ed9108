"""The ``wheel`` engine: a timer wheel over a commit log (RIP-43), on RocketMQ's file formats."""

from __future__ import annotations

from pathlib import Path

from rmqstore.contract.engine import Engine, EngineOptions, EngineSession
from rmqstore_wheel.disk import Disk
from rmqstore_wheel.ledger import Sizes
from rmqstore_wheel.read_session import WheelReadSession
from rmqstore_wheel.session import WheelSession


class WheelEngine(Engine):
    """Opens directories as RocketMQ store directories; the settings ``wheel.*`` are in ``EngineOptions.engine``.

    Args:
        disk: how files are reached; tests put one of their own here.
        sizes: sizes of the files; tests take small ones.
    """

    def __init__(self, disk: Disk | None = None, sizes: Sizes | None = None) -> None:
        self._disk = Disk() if disk is None else disk
        self._sizes = Sizes() if sizes is None else sizes

    def open(self, directory: Path, options: EngineOptions) -> EngineSession:
        """Open ``directory``; see ``Engine.open``."""
        return WheelSession(self._disk, directory, options, self._sizes)

    def open_for_reading(self, directory: Path, options: EngineOptions) -> EngineSession:
        """Open ``directory`` for reading; see ``Engine.open_for_reading``."""
        return WheelReadSession(directory, options, self._sizes)
