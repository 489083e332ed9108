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

from rmqstore.transfer.dumps import Dump, DumpReport, dump, open_dump
from rmqstore.transfer.incoming import Progress
from rmqstore.transfer.loading import LoadReport, MigrateReport, load, load_into, migrate

__all__ = ["Dump", "DumpReport", "LoadReport", "MigrateReport", "Progress", "dump", "load", "load_into", "migrate", "open_dump"]
