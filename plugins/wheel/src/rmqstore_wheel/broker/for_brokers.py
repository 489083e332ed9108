"""``ForBrokers``: all that is written for those who read a store with RocketMQ's eyes.

That is the revive log (``revive_log``), the files of a check point (``broker_files``) and the end of ``abort`` (``open_marks``).
"""

from __future__ import annotations

from collections.abc import Sequence

from rmqstore_wheel.broker.files import BrokerFiles
from rmqstore_wheel.broker.revive_log import ReviveLog
from rmqstore_wheel.files.open_marks import OpenMarks
from rmqstore_wheel.log.check_point import CheckPoint
from rmqstore_wheel.log.journal import Change
from rmqstore_wheel.log.ledger import Ledger
from rmqstore_wheel.log.ledger_ports import Beside, ForReaders
from rmqstore_wheel.timers.index import TimerIndex


class ForBrokers(ForReaders):
    """What a ledger calls; see the module docstring. Without ``revive_log`` there are no check points and acks."""

    def __init__(self, ledger: Ledger, index: TimerIndex, marks: OpenMarks, revive_log: ReviveLog | None) -> None:
        self._marks = marks
        self._revive_log = revive_log
        self._files = BrokerFiles(ledger, index, revive_log)

    def beside(self, changes: Sequence[Change]) -> Beside | None:
        return None if self._revive_log is None else self._revive_log.beside(changes)

    def settle(self) -> None:
        if self._revive_log is not None:
            self._revive_log.settle()

    def check_pointed(self, found: CheckPoint) -> None:
        self._files.write(found)

    def closed(self) -> None:
        self._marks.remove_abort()

    def close(self) -> None:
        self._marks.close()
