"""Whether every call of rmqstore's engine is whole in the commit log.

The last record of a call carries the property ``RMQS_FRAME``, whose first field, in hex, is the number of records of the call. A broker
writes none, so records outside of frames are told, but are no damage.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmqstore_wheel.formats import properties as texts
from rmqstore_wheel.inspecting.file_sets import FileSet
from rmqstore_wheel.inspecting.findings import Findings
from rmqstore_wheel.inspecting.log_files import Records

FRAME: Final = "RMQS_FRAME"


class Frames:
    """Counts frames while the records go by."""

    def __init__(self, files: FileSet, findings: Findings) -> None:
        self.whole = 0
        self.torn = 0
        self.outside = 0
        self.open_records = 0
        self._files = files
        self._findings = findings
        self._is_known = True  # whether every record since the last frame was seen

    def take(self, records: Records) -> None:
        """Look at the next records."""
        if records.follows_gap or records.damaged:
            self._is_known = False
        column: pa.Array = records.texts
        rows = np.flatnonzero(pc.match_substring(column, f"{FRAME}\x01").to_numpy(zero_copy_only=False))
        offsets = np.asarray(records.columns.physical_offset)
        behind = 0
        for row, text in zip(rows.tolist(), column.take(pa.array(rows)).to_pylist(), strict=True):
            value = texts.decode(text).get(FRAME)
            if value is not None:
                self._end(value, self.open_records + row + 1 - behind, int(offsets[row]))
                self.open_records, behind = 0, row + 1
        self.open_records += len(records.columns) - behind

    def _end(self, value: str, since: int, offset: int) -> None:
        """Note a frame whose last record lies at ``offset``; ``since`` records were read after the frame before it."""
        try:
            count = int(value.split(" ")[0], 16)
        except ValueError:
            self._torn(offset, f"the property {FRAME} is {value[:40]!r}, which does not begin with a number of records")
            return
        if count < 1 or count > since:
            if self._is_known and (self.whole or self.torn):
                self._torn(offset, f"a call of {count} records ends here, but only {since} are there: the call is torn")
            else:  # its first records lay in a file that was reclaimed, or in what could not be read
                self.torn += 1
        else:
            self.whole += 1
            self.outside += since - count
        self._is_known = True

    def _torn(self, offset: int, what: str) -> None:
        self.torn += 1
        file = self._files.file_of(offset)
        if file is not None:
            self._findings.add(file.name, offset - file.start, what, kind="calls that are not whole")
