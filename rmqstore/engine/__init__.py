"""Both lower interfaces, written once over a key-ordered database: implement :class:`OrderedKV` and call :func:`open_session`."""

from rmqstore.engine.kv.base import DeleteMany, DeleteRange, OrderedKV, PutMany, WriteBatch
from rmqstore.engine.schema import SPACES
from rmqstore.engine.session import open_session

__all__ = ["SPACES", "DeleteMany", "DeleteRange", "OrderedKV", "PutMany", "WriteBatch", "open_session"]
