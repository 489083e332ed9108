"""Command lines one by one, on one store that none of them may change: what is refused, and what is done beside an owner."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator

import pytest

import rmqstore
from rmqstore import Message
from rmqstore_conformance.stores import HOUR_MS
from tests.cli.conftest import ENGINE, Command, command_line

READING = [
    "topics list {}",
    "groups list {}",
    "lag",
    "peek {} a",
    "leases",
    "timers",
    "timers {} --list",
    "where {} --id m1",
    "group {} g",
    "dlq list {} dead",
    "config",
    "schedules list {}",
    "top {} --once",
]
READING += ["verify", "inspect", "dump {} {}.dump"]
OWNING = [
    "topics create {} a -q 2",
    "topics delete {} a -y",
    "groups delete {} g -y",
    "groups reset-offset {} a g --to min -y",
    "pop {} a -g g",
    "ack {} x",
    "cancel {} x",
    "cancel {} -t t -k k",
    "send {} a x",
    "group {} g --reset",
    "dlq resend {} dead --all",
]
OWNING += ["dlq drop {} dead --all", "snapshot {} {}2", "migrate {} --precision 100ms"]

USELESS = [
    ("serve new --create --listen 127.0.0.1:0", "tls-cert"),
    ("serve new --create --tls-cert data/rmqstore.json", "tls-ca"),
    ("worker rmqstores://127.0.0.1:1 t g json:loads", "tls-cert"),
    ("worker rmqstores://127.0.0.1:1 t g json:loads", "tls-ca"),
]
"""Options that take a certificate, with a file that is none."""

REFUSED = [
    # options and arguments that do not fit; these end with 2
    (2, "pop data a", "--group"),
    (2, "pop data a -g g --invisible 0s", "'0s' is too short; at least 1 ms"),
    (2, "pop data a -g g --wait soon", "Invalid value for --wait: 'soon' is no duration"),
    (2, "pop data a -g g --max 0", "--max"),
    (2, "pop data a -g g --follow --attempt-id x", "exclude each other"),
    (2, "pop data a -g g --max 2000 --attempt-id x", "at most 1024"),
    (2, "pop data aa -g g --create", "add --wait or --follow"),
    (2, "cancel data", "--key"),
    (2, "cancel data h --topic t --key k", "--key"),
    (2, "cancel data --topic t", "--key"),
    (2, "cancel data --key k", "--topic"),
    (2, "send '' a x --create", "directory's name"),
    (2, "send data", "give the topic"),
    (2, "send data a x --delay '5 minutes'", "Invalid value for --delay: '5 minutes' is no duration; write 90s, 5m"),
    (2, "send data a x --delay=-5m", "Invalid value for --delay: '-5m' is less than nothing; a duration must not be negative"),
    (2, "send data a x --at soon", "Invalid value for --at: 'soon' is no time; write 2026-12-01"),
    (2, "send data a x --delay 5m --at 2026-12-01", "--delay and --at exclude each other"),
    (2, "send data a x --delay-level 99", "Invalid value for --delay-level: it must be 1 to 18 (1 s to 2 h), not 99; give --delay"),
    (2, "send data a x --delay-level 0", "it must be 1 to 18 (1 s to 2 h), not 0"),
    (2, "send data a x --property y", "'y' has no '='; write NAME=VALUE"),
    (2, "send data a x --queue -1", "--queue"),
    (2, "send data a x --set engine=lmdb", "write --engine lmdb"),
    (2, "serve data --set 'engine = lmdb'", "write --engine lmdb"),
    (2, "load none.dump copy --set engine=lmdb", "write --engine lmdb"),
    (2, "send data a x --body-file x", "exclude each other"),
    (2, "send data a x -f rows.csv", "BODY and --from-file exclude"),
    *((2, f"send data a -f rows.csv {option}", "exclude each other") for option in ("--tag x", "--key x", "--id x", "--queue 0", "-p a=b")),
    (2, "send data -f -  --format parquet", "stdin is JSONL, or CSV"),
    (2, "timers data --within 1x", "Invalid value for --within: '1x' is no duration"),
    (2, "timers data --within 0s", "too short"),
    (2, "timers data --within 5", "is no duration; write 90s"),
    (2, "timers data --from noon", "Invalid value for --from: 'noon' is no time"),
    (2, "timers data --from 2024-01-02 --to 2024-01-01", "must be later than --from"),
    (2, "timers data --to 2020-01-01", "it must be later than now"),
    (2, "timers data --within 1h --to 2024-01-01", "exclude each other"),
    (2, "timers data --buckets 0", "--buckets"),
    (2, "peek data", "give a topic, or --id"),
    (2, "peek data a --id x", "give a topic, or --id"),
    (2, "peek data a --queue 1", "topic a has 1 queue, counted from 0"),
    (2, "group data g --reset --max-retries 1", "--reset takes everything back"),
    (2, "dlq list data g --parked", "give a group, or --parked"),
    (2, "dlq drop data --all", "give a group, or --parked"),
    (2, "dlq drop data dead", "say which: --id, which may be given again, or --all"),
    (2, "dlq resend data dead", "say which"),
    (2, "dlq resend data dead --all --id m1", "say which"),
    (2, "dlq drop data dead --older-than old", "Invalid value for --older-than: 'old' is no duration"),
    (2, "dlq resend data", "GROUP"),
    (2, "load copy", "STORE"),
    (2, "load none.dump copy --precision soon", "Invalid value for --precision: 'soon' is no duration"),
    (2, "migrate data", "say what to change: --engine, --precision, or both"),
    (2, "migrate data --precision 7ms", "'7ms' is no width of a tick; it may be 1000, 500, 200 or 100 ms"),
    (2, "inspect data --at soon", "is no time"),
    (2, "pause data pops", "'pops' is not one of"),
    (2, "groups reset-offset data a g --to x", "none of min, max and an offset"),
    *((2, f"schedules put data s t x {when}", "give --cron or --every") for when in ("", "--cron '* * * * *' --every 1h")),
    (2, "schedules put data s t x --every 1ms", "Invalid value for --every: '1ms' is too short"),
    (2, "top data --every 1ms", "too short"),
    (2, "top data --token-file data/rmqstore.json", "a directory is shared without a token"),
    (2, "serve new --create --listen nonsense", "neither unix nor HOST:PORT"),
    (2, "serve data --health 9464", "HOST:PORT"),
    (2, "serve new --create --tls-key data/rmqstore.json", "give --tls-cert"),
    *((2, f"worker data t g json:loads --{name} data/rmqstore.json", "directory is shared without") for name in ("tls-ca", "token-file")),
    (2, "worker rmqstore://127.0.0.1:1 t g json:loads --tls-cert data/rmqstore.json", "of the form rmqstores://HOST:PORT"),
    (2, "worker rmqstores://127.0.0.1:1 t g json:loads --tls-key data/rmqstore.json", "give --tls-cert"),
    (2, "worker data t g jobs", "is not MODULE:FUNCTION"),
    (2, "send data a -f data/rmqstore.json", "say --format"),
    (2, "completion tcsh", "tcsh"),
    (2, "no-such-command", "No such command"),
    (2, "--no-such-option", "No such option"),
    # what is not there, with what is
    (1, "lag data -t c", "has no topic 'c'; it has a, b"),
    (1, "lag data -g gg", "has no group 'gg'; did you mean g?"),
    (1, "lag data -g new -t a --json", "has no group 'new'; it has dead, g"),
    (1, "leases data -t aa", "has no topic 'aa'; did you mean a?"),
    (1, "leases data -t zzz --json", "has no topic 'zzz'; it has a, b"),
    (1, "leases data -g new -t a", "has no group 'new'; it has dead, g"),
    (1, "peek data aa", "has no topic 'aa'; did you mean a?"),
    (1, "timers data --topic latr", "has no topic 'latr' and no timer for one; did you mean later?"),
    (1, "timers data --list --topic zzz", "has no topic 'zzz' and no timer for one; it has a, b, later"),
    (1, "timers data --json --topic zzz", "has no topic 'zzz' and no timer for one; it has a, b, later"),
    (1, "cancel data -t latr -k 42 --json", "has no topic 'latr' and no timer for one; did you mean later?"),
    (1, "pop data aa -g typo", "has no topic 'aa'; did you mean a?"),
    (1, "pop data aa -g typo --wait 1h", "has no topic 'aa'; did you mean a?"),
    (1, "pop data aa -g typo --follow", "has no topic 'aa'; did you mean a?"),
    *((1, f"dlq {rest}", "has no group 'daed'; did you mean dead?") for rest in ("list data daed", "resend data daed --all")),
    *((1, f"dlq drop data daed {which}", "has no group 'daed'; did you mean dead?") for which in ("--all", "--older-than 1d")),
    (2, "where data", "--id or --key, and not both"),
    (2, "where data --id m1 --key k", "--id or --key, and not both"),
    (1, "where data --key 42 --topic latr --json", "has no topic 'latr' and no timer for one; did you mean later?"),
    (1, "load none.dump copy", "none.dump"),
    (1, "topics delete data aa -y", "has no topic 'aa'; did you mean a?"),
    (1, "groups delete data gg -y", "has no group 'gg'; did you mean g?"),
    (1, "top unix:/nowhere/sock --once", "/nowhere/sock"),
    *((1, f"worker data t g {handler}", "cannot be found") for handler in ("nojobs:x", "json:nothing")),
    (1, "worker data t g sys:path", "is no function"),
    (1, "worker new t g json:loads", "there is no store"),
    # what would be removed where nobody can be asked
    *((1, line, "Say --yes") for line in ("topics delete data a", "groups delete data g", "groups reset-offset data a g --to min")),
    # what lets everybody in, or nobody
    (1, "serve new --create --listen 0.0.0.0:0", "give --token-file"),
    (1, "serve new --create --token-file /dev/null", "can be guessed"),
    *((1, f"{line} --{name} data/rmqstore.json", f"--{name} data/rmqstore.json cannot be used") for line, name in USELESS),
    # what no store takes
    (1, "pop data a -g 'a b'", "group name 'a b' is not made of"),
    (1, "pop data a -g g --order", "pops topic 'a' out of order, as its first pop fixed; leave out --order, or use another group"),
    (1, "pop data a -g g --filter \"region = 'eu' AND AND\"", "character 18 (from 0)"),
    (1, "send data 'a b' x", "is not made of letters"),
    (1, "send data a", "body has 0 bytes"),
    (1, "send data a --body-file none", "cannot be read: No such file"),
    (1, "send data a -f rows.csv", "rows.csv cannot be read: No such file"),
    (1, "send data a x --set precision_ms=100", "was made with precision_ms = 1000"),
    (1, "send new a x --create --tag 'a b'", "tag 'a b' holds a blank"),
    (1, "send new a x --create --message-group g --delay 5m", "exclude each other"),
    (1, "send new a x --create --message-group g -p DELAY=3", "exclude each other"),
    (1, "send new a x --create --set precision_ms", "write key=value"),
    (1, "send new a x --create --set precisoin_ms=100", "did you mean precision_ms?"),
    (1, "send new a x --create --set precision_ms=7", "precision_ms must be"),
    (1, "send new a x --create --engine no_such_engine", "no engine is called 'no_such_engine'"),
    (1, "load none.dump copy --set x=1", "setting x is unknown"),
    (1, "migrate data --engine wheelie", "no engine is called 'wheelie'"),
    (1, "schedules put data s t x --cron '1 2 3'", "five fields"),
    (1, "schedules put data s t x --cron '* * * * *' --zone Mars/Olympus", "tzdata"),
    (1, "new-engine Acme", "'Acme'"),
    (1, "new-engine memory", "already"),
    (1, "new-engine data", "is there already"),
    (1, f"migrate data --engine {ENGINE}", f"is of engine {ENGINE!r} already"),
]


def contents(store: rmqstore.Store) -> object:
    pops = store.stats().pops
    stands = [(group, store.groups.offsets(group)) for group in store.groups.list()]
    return store.verify(), store.pending().total, pops.topics, pops.messages, pops.in_flight, stands, store.schedules.list()


@pytest.fixture(scope="module")
def shop() -> Iterator[Command]:
    """Topics a and b, a timer of topic later, and group dead that gave a message up; it is the same at the end."""
    with command_line() as command:
        with command.owner(engine=ENGINE, max_retries=0) as store:
            store.send_batch([Message("a", b"x", message_id=f"m{number}") for number in range(3)])
            store.send(Message("b", b"x"))
            store.send(Message("later", b"x", keys=("42",)), delay_ms=HOUR_MS)
            store.pop("a", "dead", max_messages=1, invisible_ms=1)
            command.clock.advance(1000)
            store.tick()
            store.pop("a", "g", max_messages=1)
            before = contents(store)
        yield command
        with command.owner() as store:
            assert contents(store) == before
        assert {entry.name.partition(".")[0] for entry in command.root.iterdir()} == {"data"}, "no store was made"


@pytest.mark.parametrize(("code", "line", "said"), REFUSED, ids=[line for _, line, _ in REFUSED])
def test_what_is_refused_is_told(shop: Command, monkeypatch: pytest.MonkeyPatch, code: int, line: str, said: str) -> None:
    monkeypatch.chdir(shop.root)
    assert said in shop.bad(code, *shlex.split(line))


def arguments(line: str, store: object) -> list[str]:
    return line.format(store, store).split() if "{}" in line else [line, str(store)]


@pytest.mark.parametrize("line", READING)
def test_reading_works_beside_an_owner(shop: Command, line: str) -> None:
    with shop.owner():
        assert shop.good(*arguments(line, shop.data)).code == 0


@pytest.mark.parametrize("line", OWNING)
def test_what_owns_a_store_is_refused_beside_its_owner(shop: Command, line: str) -> None:
    with shop.owner():
        said = shop.bad(1, *arguments(line, shop.data))
    assert "is open elsewhere, by this process (pid" in said
    assert "the commands that only read, and rmqstore.open(path, read_only=True), work beside it" in said


@pytest.mark.parametrize("line", [line for line in READING + OWNING if line not in ("config", "inspect")])
def test_a_store_is_needed(shop: Command, line: str) -> None:
    assert "there is no store in" in shop.bad(1, *arguments(line, shop.root / "none"))


def test_an_engine_that_cannot_be_read_beside_its_owner_is_opened_for_a_moment(cli: Command) -> None:
    path = str(cli.root / "memory")
    cli.good("send", path, "t", "x", "--create", "--engine", "memory")
    assert cli.good("topics", "list", path, "--json").json == {"topics": []}, "this engine keeps nothing"
    with rmqstore.open(path, services=False):
        said = cli.bad(1, "topics", "list", path)
    assert f"is open elsewhere, by this process (pid {os.getpid()}); its engine cannot be read beside its owner" in said
    assert "work beside it" not in said
