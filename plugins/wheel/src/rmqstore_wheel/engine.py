"""The ``wheel`` engine: a timer wheel over a commit log (RIP-43), on RocketMQ's file formats."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from rmqstore.contract.engine import Engine, EngineOptions, EngineSession
from rmqstore_wheel.files.disk import Disk
from rmqstore_wheel.log.ledger import Sizes
from rmqstore_wheel.reader.session import open_for_reading
from rmqstore_wheel.session import open_session

_MIB: Final = 1024 * 1024
_SIZES: Final = ("log_file_mib", "copy_live_percent", "check_point_mib")


class WheelEngine(Engine):
    """Opens directories as RocketMQ store directories; the settings ``wheel.*`` are in ``EngineOptions.engine``.

    Args:
        disk: how files are reached; tests put one of their own here.
        sizes: sizes of the files, whatever the settings say; tests take small ones.
    """

    def __init__(self, disk: Disk | None = None, sizes: Sizes | None = None) -> None:
        self._disk = Disk() if disk is None else disk
        self._sizes = sizes

    def open(self, directory: Path, options: EngineOptions) -> EngineSession:
        """Open ``directory``; see ``Engine.open``."""
        return open_session(self._disk, directory, options, self._sizes_of(options))

    def open_for_reading(self, directory: Path, options: EngineOptions) -> EngineSession:
        """Open ``directory`` for reading; see ``Engine.open_for_reading``."""
        return open_for_reading(directory, options, self._sizes_of(options))

    def _sizes_of(self, options: EngineOptions) -> Sizes:
        return sizes_of(options) if self._sizes is None else self._sizes


def sizes_of(options: EngineOptions) -> Sizes:
    """Return the sizes that the settings ask for."""
    usual = Sizes()
    given = {key: int(value) for key, value in options.engine.items() if key in _SIZES}
    return usual._replace(
        log_file_bytes=given.get("log_file_mib", usual.log_file_bytes // _MIB) * _MIB,
        copy_live_percent=given.get("copy_live_percent", usual.copy_live_percent),
        check_point_bytes=given.get("check_point_mib", usual.check_point_bytes // _MIB) * _MIB,
    )
