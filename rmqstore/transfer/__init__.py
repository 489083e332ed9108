"""Moving stores: out into a dump, in from dumps, and from one engine to another in place (docs/transfer.md).

>>> import rmqstore, tempfile
>>> from rmqstore import transfer
>>> from pathlib import Path
>>> root = Path(tempfile.mkdtemp())
>>> with rmqstore.open(root / "a", engine="memory", services=False) as store:
...     sent = store.send(rmqstore.Message("orders", b"close 42"))
...     report = transfer.dump(store, root / "dump")
>>> report.tables["messages"]
1
"""

from rmqstore.transfer.dumping import DumpReport, dump
from rmqstore.transfer.dumps import Dump, open_dump
from rmqstore.transfer.incoming import Progress
from rmqstore.transfer.loading import LoadReport, load, load_into
from rmqstore.transfer.migrating import MigrateReport, migrate

__all__ = ["Dump", "DumpReport", "LoadReport", "MigrateReport", "Progress", "dump", "load", "load_into", "migrate", "open_dump"]
