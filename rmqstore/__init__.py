"""rmqstore: a durable store for timed and popped messages, with storage engines that plug in.

>>> import rmqstore, tempfile
>>> with rmqstore.open(tempfile.mkdtemp(), engine="memory", clock=rmqstore.ManualClock(0), services=False) as store:
...     sent = store.send(rmqstore.Message("orders", b"close 42"), delay_ms=1000)
...     store.cancel(sent.handle)
<CancelOutcome.CANCELLED: 'cancelled'>
"""

from importlib import import_module
from typing import TYPE_CHECKING

from rmqstore import errors
from rmqstore.batch import MessageBatch
from rmqstore.clock import Clock, ManualClock, SystemClock
from rmqstore.contract import (
    AckOutcome,
    CancelOutcome,
    ChangeOutcome,
    ChangeResult,
    GroupSettings,
    InitMode,
    Lag,
    LeaseInfo,
    MessageState,
    PendingCounts,
    Receipt,
    RejectOutcome,
    ReleaseOutcome,
    Subscription,
    TopicInfo,
)
from rmqstore.delays import DELAY_LEVELS_MS, RETRY_BACKOFF_MS
from rmqstore.errors import *  # noqa: F403 - every error is public
from rmqstore.late import schemas
from rmqstore.message import Message, PoppedMessage
from rmqstore.server import connect, open  # noqa: A004 - a store opens like a file
from rmqstore.services.consuming import Reject, Retry
from rmqstore.services.worker import Worker
from rmqstore.store import Store
from rmqstore.store.dead_letters import DeadLetter
from rmqstore.store.health import GroupHealth, Health
from rmqstore.store.lookup import Whereabouts
from rmqstore.store.pauses import Flow, Pause
from rmqstore.store.reader import ReadStore, StoreStats
from rmqstore.store.schedules import Schedule
from rmqstore.store.sending import SendReceipt
from rmqstore.store.snapshots import restore
from rmqstore.store.tick import TickReport

__version__ = "0.1.0"

if TYPE_CHECKING:
    from rmqstore import aio as aio
    from rmqstore.schemas import IN_SCHEMA, OUT_SCHEMA
else:

    def __getattr__(name: str) -> object:
        if name == "aio":  # few programs need it, and asyncio
            return import_module("rmqstore.aio")
        if name in ("IN_SCHEMA", "OUT_SCHEMA"):  # pyarrow comes with the first use of one
            return getattr(schemas, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "DELAY_LEVELS_MS",
    "IN_SCHEMA",
    "OUT_SCHEMA",
    "RETRY_BACKOFF_MS",
    "AckOutcome",
    "CancelOutcome",
    "ChangeOutcome",
    "ChangeResult",
    "Clock",
    "DeadLetter",
    "Flow",
    "GroupHealth",
    "GroupSettings",
    "Health",
    "InitMode",
    "Lag",
    "LeaseInfo",
    "MessageState",
    "ManualClock",
    "Message",
    "MessageBatch",
    "Pause",
    "PendingCounts",
    "PoppedMessage",
    "ReadStore",
    "Receipt",
    "Reject",
    "RejectOutcome",
    "ReleaseOutcome",
    "Retry",
    "Schedule",
    "SendReceipt",
    "Store",
    "StoreStats",
    "Subscription",
    "SystemClock",
    "TickReport",
    "TopicInfo",
    "Whereabouts",
    "Worker",
    "connect",
    "open",
    "restore",
    *errors.__all__,
]
