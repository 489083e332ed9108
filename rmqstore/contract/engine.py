"""What an engine says of itself, and how the framework opens it (docs/engine.md)."""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path

import msgspec

from rmqstore.contract.pops import PopStore
from rmqstore.contract.timers import TimerStore
from rmqstore.errors import UnsupportedOperationError

API_VERSION = 1
"""The version of this contract; an engine of another one is refused."""


class Durability(enum.IntEnum):
    """What an acknowledged call survives."""

    NONE = 0
    PROCESS_CRASH = 1
    POWER_LOSS = 2


class NewNames(enum.Enum):
    """What makes the name of a new file durable, as an engine relies on it: the sync of its directory, or that of the file as well.

    POSIX promises the first alone; ext4, XFS and Btrfs keep both.
    """

    DIRECTORY_SYNC = "directory sync"
    FILE_SYNC = "file sync"


class Flush(enum.Enum):
    """When acknowledged calls reach the disk: before the answer, or at an interval."""

    SYNC = "sync"
    ASYNC = "async"


class Operation(enum.Enum):
    """The operations whose durability is declared one by one."""

    PUT = "put"
    CANCEL = "cancel"
    APPEND = "append"
    POP = "pop"
    ACK = "ack"
    CHANGE = "change"


BUFFERED = frozenset((Operation.POP, Operation.ACK))
"""The operations that survive nothing while a pop buffer holds what they did."""


class PopBuffer(msgspec.Struct, frozen=True, kw_only=True):
    """How much of pops and acks may be kept in memory alone, and for how long, so that a lease that is acked soon is never written.

    RocketMQ's ``PopBufferMergeService``; the limits are those of ``BrokerConfig``, which are the defaults here.

    Attributes:
        stay_ms: what has been there for so long is written (``popCkStayBufferTime``).
        left_ms: so is a lease that ends in less than this (``popCkStayBufferTimeOut``).
        check_points: so many at most are there (``popCkMaxBufferSize``).
        queue_check_points: of one group on one queue (``popCkOffsetMaxQueueSize``).
    """

    stay_ms: int = 10_000
    left_ms: int = 3000
    check_points: int = 200_000
    queue_check_points: int = 20_000


class Reclaim(enum.Enum):
    """What makes room beside an age limit: nothing, or that every registered group has consumed a message (Q2)."""

    AGE = "age"
    CONSUMED = "consumed"


class Support(enum.Enum):
    """Whether a capability is there; every observable behaviour has one of its own."""

    FULL = "full"
    NOT_YET = "not yet"
    IMPOSSIBLE = "impossible"


UNLIMITED_MS = 2**62
"""The horizon of an engine that can hold any deliver time."""


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine can do and how much it takes: enums and numbers, never free strings."""

    durability: Mapping[Flush, Mapping[Operation, Durability]]
    horizon_ms: int = UNLIMITED_MS
    min_precision_ms: int = 100
    max_precision_ms: int = 1000
    max_body_bytes: int = 4 * 1024 * 1024
    max_properties_bytes: int = 32_767
    max_key_bytes: int = 32_767
    cancel_by_key: Support = Support.FULL
    fifo: Support = Support.NOT_YET
    sql92_filter: Support = Support.NOT_YET
    read_only_open: Support = Support.NOT_YET
    retention: Support = Support.NOT_YET
    import_state: Support = Support.NOT_YET
    snapshot: Support = Support.FULL
    pop_buffer: Support = Support.NOT_YET
    new_names: NewNames = NewNames.DIRECTORY_SYNC

    def durability_of(self, operation: Operation, flush: Flush, pop_buffer: PopBuffer | None = None) -> Durability:
        """Return what an acknowledged ``operation`` survives under ``flush``, and with a pop buffer if there is one."""
        if pop_buffer is not None and operation in BUFFERED:
            return Durability.NONE
        return self.durability[flush][operation]

    @property
    def keeps_nothing(self) -> bool:
        """Whether a store is empty once it is closed: what was put survives nothing under any setting."""
        return self.durability_of(Operation.PUT, Flush.SYNC) is Durability.NONE


def same_durability(*, sync: Durability, asynchronous: Durability) -> dict[Flush, dict[Operation, Durability]]:
    """Return the durability table of an engine that treats all operations alike."""
    return {
        Flush.SYNC: dict.fromkeys(Operation, sync),
        Flush.ASYNC: dict.fromkeys(Operation, asynchronous),
    }


class Setting(msgspec.Struct, frozen=True):
    """One setting: its dotted key, its type and what it may be; the framework's and the engines' alike.

    ``minimum`` / ``maximum`` bound numbers, ``choices`` lists what a string or number may be; ``baked`` settings are stored with the
    store and must not differ at a later open.
    """

    key: str
    type: type[int] | type[float] | type[str] | type[bool]
    default: int | float | str | bool
    doc: str
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[int | str, ...] = ()
    baked: bool = False


class EngineInfo(msgspec.Struct, frozen=True, kw_only=True):
    """How a distribution announces an engine without importing its C extension.

    Attributes:
        name: what users write, ``[a-z][a-z0-9_]*``.
        capabilities: the declaration that the suite tries to refute.
        factory: ``module:attribute`` of a callable that returns an :class:`Engine`; imported when the engine is opened.
        requires: modules that must be importable, for the engine to be installed.
        install_hint: the command that installs what is missing.
        preference: among installed durable engines, the highest one is the default.
        settings: the engine's own settings, each key starting with ``<name>.``.
        inspector: ``module:attribute`` of an :class:`rmqstore.contract.Inspector`, which ``rmqstore inspect`` calls; empty = there is none.
        api_version: the contract it was written for.
    """

    name: str
    capabilities: Capabilities
    factory: str
    requires: tuple[str, ...] = ()
    install_hint: str = ""
    preference: int = 0
    settings: tuple[Setting, ...] = ()
    inspector: str = ""
    api_version: int = API_VERSION


class EngineOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the framework hands to an engine when it opens it; every value is checked already.

    Those that are not listed here are settings of the framework; docs/configuration.md says what each means.

    Attributes:
        store_tag: 32-bit number of this store, part of handles and receipts.
        broker: the store's name in receipts, without a blank.
        congestion_limit, congestion_seed: for T9, the seed being that of the draws.
        cancel_memory_ms, outcome_memory_ms, mark_memory_ms: how long answers stay true (C, P5, I1).
        max_retries, max_in_flight, retry_share: for P7, P12, P13.
        retention_ms, reclaim, group_expiry_ms: for Q1, Q2, Q3.
        pop_buffer: pops and acks may wait in memory, within these limits; None = they are written at once.
        flush: whether callers wait for the disk, or are answered before (F1).
        pop_flush: ``ASYNC`` = the ticket of a pop that does nothing but lease may be that of what the pop rests on.
        min_epoch: no open epoch is below this one: the store goes on from a copy of another one's state.
        engine: the engine's own settings, without the ``<name>.`` prefix.
    """

    store_tag: int
    broker: str
    precision_ms: int = 1000
    max_delay_ms: int = 0
    congestion_limit: int = 0
    congestion_seed: int = 0
    cancel_memory_ms: int = 86_400_000
    outcome_memory_ms: int = 600_000
    mark_memory_ms: int = 7 * 86_400_000
    default_queues: int = 1
    max_retries: int = 16
    max_in_flight: int = 0
    retry_share: float = 0.2
    retention_ms: int = 0
    reclaim: Reclaim = Reclaim.CONSUMED
    group_expiry_ms: int = 0
    pop_buffer: PopBuffer | None = None
    flush: Flush = Flush.SYNC
    pop_flush: Flush = Flush.SYNC
    min_epoch: int = 0
    engine: Mapping[str, int | float | str | bool] = msgspec.field(default_factory=dict)


class EngineSession(ABC):
    """One open engine directory. Timers and pops of one session live in one atomic log when ``one_log`` is True."""

    one_log: bool = False

    @abstractmethod
    def timers(self) -> TimerStore:
        """Return the timer side; the same object every time."""

    @abstractmethod
    def pops(self) -> PopStore:
        """Return the pop side; the same object every time."""

    @abstractmethod
    def snapshot(self, path: Path) -> None:
        """Write a consistent copy of both sides to the new directory ``path``, which opens as an engine directory."""

    def refresh(self) -> None:
        """Move a session that was opened for reading on to what is there now; when that fails, call it again or close.

        Raises:
            UnsupportedOperationError: the session owns its directory, so it sees everything anyway.
        """
        raise UnsupportedOperationError("only a session that was opened for reading can be refreshed")

    @abstractmethod
    def close(self) -> None:
        """Make everything durable and let go of the files; idempotent."""


class Engine(ABC):
    """A storage engine: opens directories as sessions."""

    @abstractmethod
    def open(self, directory: Path, options: EngineOptions) -> EngineSession:
        """Open ``directory``, made by the caller and empty the first time.

        A new open epoch is durable before this returns. An engine that is half created (its creation crashed) starts afresh.

        Raises:
            StoreLockedError: the directory is open elsewhere.
            FormatVersionError: the directory was written in another format, or by another engine.
            CorruptStoreError: the directory is damaged.
            StoreFullError: the disk has no room.
        """

    def open_for_reading(self, directory: Path, options: EngineOptions) -> EngineSession:
        """Open one consistent state of ``directory`` for reading, whatever process owns it, or none (X1).

        No file in it is changed, no epoch is taken, no lock keeps an owner out. What is seen is a prefix of the owner's calls that holds
        everything durable; ``refresh`` moves it on. The mutating calls of both sides, and ``recover``, raise ``UnsupportedOperationError``.

        Raises:
            UnsupportedOperationError: the engine does not declare ``read_only_open``.
            FormatVersionError, CorruptStoreError: as for :meth:`open`.
            StorePathError: a file cannot be read.
        """
        raise UnsupportedOperationError(f"{type(self).__name__} cannot be opened for reading beside its owner")
