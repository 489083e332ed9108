"""What happens to a store as a whole: closed and opened, killed, copied, moved, read beside its owner; and how a history ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import rmqstore
from rmqstore import transfer
from rmqstore_conformance.model.chance import Chance
from rmqstore_conformance.model.machine import operation
from rmqstore_conformance.model.operating import OperatedMachine
from rmqstore_conformance.stores import copied_as_it_is


class WholeMachine(OperatedMachine):
    def _goes_on(self, how: str, name: str, settings: dict[str, Any], chance: Chance) -> None:
        """Open another store and go on with it in place of the one before, with the same content; for the oracle nothing changes."""
        old, self.store = self.store, self.transcript.watched(name, settings)
        old.close()
        self.lives.append(how)
        self.oracle.until_ms = -1
        self.oracle.forget_turns()
        self.read_to.clear()
        for what, there in (
            ("leases", self.oracle.live),
            ("backing off", any(each.is_backing_off for each in self.oracle.live.values())),
            ("sealed timers", any(each.sealed for each in self.oracle.pending())),
            ("timers", self.oracle.pending()),
            ("fifo runs", any(run for at in self.oracle.standings.values() for run in at.unacked.values())),
            ("letters", any(self.oracle.letters.values())),
            ("marks", self.oracle.marked),
        ):
            if there:
                self.saw(how, "goes on", f"with {what}")
        self.look(whole=True)
        self.settle_some(chance, list(self.oracle.leases)[-30:])
        self.settle_some(chance, list(self.oracle.live))

    def _settings_of_the_next(self, chance: Chance) -> dict[str, Any]:
        """Return the settings of the next open, some of them other ones than before; the oracle goes by them as well."""
        if chance.one_in(2):
            self.settings |= self.plan.changed(chance)
        return self.settings

    @operation(2, when=lambda machine: machine.pair.durable)
    def reopen(self, chance: Chance) -> None:
        self.lease_some(chance)
        name = Path(self.store.stats().path).name
        self.transcript.note("store.close()")
        self.store.close()
        self._goes_on("reopened", name, self._settings_of_the_next(chance), chance)

    @operation(5, when=lambda machine: machine.pair.durable and machine.survives_crashes)
    def crash(self, chance: Chance) -> None:
        """Kill the process right behind the last answer: what the file system shows then is opened in place of the store."""
        if chance.one_in(2):
            self.lease_some(chance)
        if self.is_broken_off or self.is_unsettled:
            # What a tick does beside the hand-over is no call, so it may be lost as long as no answer rests on it.
            self.store.flush()
        name = self._next_name()
        self.transcript.note(f"shutil.copytree(root / {Path(self.store.stats().path).name!r}, root / {name!r})")
        copied_as_it_is(Path(self.store.stats().path), self.stores.root / name)
        self.transcript.note("store.close()")
        self._goes_on("crashed", name, self._settings_of_the_next(chance), chance)

    @operation(2, "snapshot", when=lambda machine: machine.pair.durable)
    def snapshot(self, chance: Chance) -> None:
        """Copy the store; go on with the copy, or look at it only."""
        self.lease_some(chance)
        name = self._next_name()
        self.store.snapshot(self.stores.root / name)
        if chance.one_in(2):
            self.transcript.note("store.close()")
            self._goes_on("copied", name, self.settings, chance)
            return
        copy = self.stores.open(name, **self.settings)
        original, self.store, until_ms = self.store, copy, self.oracle.until_ms
        self.read_to.clear()
        self.look(whole=True)
        self.store, self.oracle.until_ms = original, until_ms
        copy.close()
        self.saw("copied", "looked at")

    @operation(1, "import_state", when=lambda machine: machine.pair.durable)
    def dump_and_load(self, chance: Chance) -> None:
        """Write the store out, make a new one of that, and go on with it."""
        self.lease_some(chance)
        name = self._next_name()
        given: dict[str, Any] = {"timer_engine": self.pair.timers, "pop_engine": self.pair.pops, "clock": self.clock}
        self.transcript.note(f"store.transfer.dump(root / {name + '.dump'!r})")
        self.store.transfer.dump(self.stores.root / f"{name}.dump")
        self.transcript.note(f"transfer.load(root / {name + '.dump'!r}, root / {name!r}, **{given | self.settings | {'clock': None}!r})")
        transfer.load(self.stores.root / f"{name}.dump", self.stores.root / name, **given, **self.settings)
        self.transcript.note("store.close()")
        self._goes_on("loaded", name, self._settings_of_the_next(chance), chance)
        if "cancel_by_key" in self.plan.support and chance.one_in(2):
            self.cancel_key(chance)

    @operation(1, "read_only_open", when=lambda machine: machine.pair.durable)
    def read_beside(self, chance: Chance) -> None:
        """Open the store for reading beside its owner, and look at it from there (X1)."""
        self.store.flush()
        given: dict[str, Any] = {"timer_engine": self.pair.timers, "pop_engine": self.pair.pops, **self.settings}
        with rmqstore.open(self.store.stats().path, read_only=True, **given) as reader:
            self.look(reader, whole=True)
        self.saw("read beside", "looked at")

    def _next_name(self) -> str:
        self.copies += 1
        return f"copy{self.copies}"

    # ------------------------------------------------------------ the end

    def drain(self) -> None:
        """End a history by letting all time pass and popping all there is; nothing is left."""
        far = [timer for timer in self.oracle.pending() if self.distant(timer)]
        if far:
            outcomes = self.store.cancel([timer.handle for timer in far])
            for timer, outcome in zip(far, outcomes, strict=True):
                assert outcome in self.oracle.cancel(timer)
        self.clock.set(max([self.now, *(timer.tick for timer in self.oracle.pending())]))
        for _ in range(60):
            self.clock.advance(8_000_000)
            self.ticked()
            for group in self.groups:
                if letters := self.oracle.letters.get(group):
                    self.remove_letters(group, range(len(letters)), resend=True)
                for topic in self.topics:
                    while got := self.popped_by(topic, group, 1024, 60_000):
                        self._acked([str(each.receipt) for each in got])
            self._acked(list(self.oracle.live))
            self.look(whole=False)
            lags = [self.oracle.lag(topic, group) for topic in self.topics for group in self.groups]
            if not any(map(self.drained_lag, lags)) and not any(self.oracle.letters.values()):
                break
        self.read_to.clear()
        self.look(whole=True)
        assert not self.oracle.pending()
        for topic in self.topics:
            for group in self.groups:
                lag = self.store.lag(topic, group)
                assert (lag.dead, self.drained_lag(lag)) == (0, 0)
