"""pyarrow imports pandas, where it is installed, with the first value that it converts: a second or more, for which no lock is held."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from rmqstore import Message, MessageBatch
from rmqstore_conformance.stores import Pair
from tests.engine import imports_under_locks
from tests.pairs import ENGINES

PAIRS = [*(Pair(name, name) for name in ENGINES), *([Pair("memory", "wheel"), Pair("wheel", "memory")] if "wheel" in ENGINES else [])]


@pytest.mark.parametrize(("kind", "due"), [*((kind, due) for kind in ("rows", "lists") for due in ("now", "later")), ("columns", "later")])
@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_no_call_imports_pandas_while_it_holds_the_lock_of_an_engine(pair: Pair, kind: str, due: str) -> None:
    columns = MessageBatch(messages=[Message("t", b"x")] * imports_under_locks.COUNT).columns
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, columns.schema) as stream:
        stream.write_batch(columns)
    script = Path(imports_under_locks.__file__)
    ran = subprocess.run([sys.executable, script, *pair, kind, due], input=sink.getvalue().to_pybytes(), capture_output=True, check=False)
    assert ran.returncode == 0, ran.stderr.decode()
    told = json.loads(ran.stdout)
    assert not [each for each in told["found"] if each[:2] == ["pandas", "held"]]
    if kind == "rows":
        assert not told["pandas"], "nothing of it needs columns that somebody else reads"
