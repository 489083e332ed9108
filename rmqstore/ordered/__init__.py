"""Both lower interfaces, written once over a key-ordered database: implement :class:`OrderedKV` and call :func:`open_session`."""

from rmqstore.ordered.kv import DeleteMany, DeleteRange, OrderedKV, PutMany, WriteBatch
from rmqstore.ordered.layout import SPACES
from rmqstore.ordered.session import open_session

__all__ = ["SPACES", "DeleteMany", "DeleteRange", "OrderedKV", "PutMany", "WriteBatch", "open_session"]
