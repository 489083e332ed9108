"""Tables of Spark's catalog: what Spark does not hand on to a source that is written in Python is kept in the schema of the table.

Spark gives a Python data source the options of a table once, when the table is made, and its schema with every read and write. So the
options are kept as metadata of one column, which goes with every ``INSERT``, since each column of the table takes part in it. They also
go with a frame that has this column, though, and so into a table that is made of such a frame. So this column is one that no new message
has, and what has a value there is not taken.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from rmqstore.errors import IllegalArgumentError, IllegalMessageError
from rmqstore.spark.readout import View

_KEY: Final = "rmqstore"
_OPTION: Final = "option."
_WITHOUT: Final = "leave 'handle' out, as in INSERT INTO name BY NAME SELECT * EXCEPT (handle), or df.drop('handle')"


def options_of_creation(options: Mapping[str, str]) -> dict[str, str] | None:
    """Return the options of a ``CREATE TABLE``, without what Spark adds to them; None when this is none."""
    if "provider" not in options:
        return None
    given = {name.removeprefix(_OPTION): text for name, text in options.items() if name.startswith(_OPTION)}
    path = options.get("path", "")
    # Spark makes a path a URI.
    return given | {"path": unquote(urlsplit(path).path) if path.startswith("file:") else path}


def with_options(columns: pa.Schema, options: Mapping[str, str]) -> StructType:
    """Return the schema of a table that has these columns and options."""
    schema = from_arrow_schema(columns)
    # A new message has no handle; the other views are not written to.
    schema["handle" if "handle" in schema.names else schema.names[0]].metadata = {_KEY: dict(options)}
    return schema


def options_of(schema: StructType) -> dict[str, str]:
    """Return the options of the table whose schema this is; none of any other."""
    found = [field.metadata[_KEY] for field in schema.fields if _KEY in (field.metadata or {})]
    return dict(found[0]) if found else {}


def check_written(options: Mapping[str, str], path: str | None) -> None:
    """Refuse a write of what Spark takes for a table, or would: one that is only read, or rows of one table that go elsewhere.

    The options are those that came with the schema, the path is what the write itself names.
    """
    if path is not None and options.get("path", path) != path:
        # Were this a saveAsTable, the new table would show what the other one has.
        raise IllegalArgumentError(f"these rows are of the table of {options['path']}, and go to {path}: {_WITHOUT}")
    if options.get("view", View.TIMERS.value) != View.TIMERS.value:
        raise IllegalArgumentError(f"a table of the view {options['view']!r} is only read; write to one of the view 'timers'")


def without_handles(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows for a table; one that is a timer already would be there twice if the new table and the old one are the same."""
    at = batch.schema.get_field_index("handle")
    if at >= 0 and batch.column(at).null_count < batch.num_rows:
        raise IllegalMessageError(f"column 'handle' has a value, so a row is a timer already, and a table takes new ones: {_WITHOUT}")
    return batch
