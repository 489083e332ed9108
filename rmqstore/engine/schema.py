"""Where everything is: the spaces of the database and the tables in them (one byte of prefix a table).

All integers in keys are big-endian, so that they sort as numbers.

==========  =======  ==================================================  ==========================================
space       table    key                                                 value
==========  =======  ==================================================  ==========================================
meta        ``m``    name                                                singletons: format, epoch, seq, seal, cursor …
meta        ``c``    minute of the due time (u64)                        pending timers due in it (i64)
meta        ``t``    topic name                                          topic: id, queues of message groups, next offsets
meta        ``g``    group name                                          group: id
meta        ``q``    group name                                          settings of the group (``GroupSettings``)
meta        ``o``    name of a note                                      what is noted (``PopTxn.notes``)
meta        ``z``    name of a deleted topic                             the id that it had (u32): under it there is something left
meta        ``s``    group u32, topic u32, queue u32                     where the group stands on the queue
meta        ``d``    group u32, topic u32                                dead letters of the topic (u64), offset of the first (u64)
meta        ``r``    group u32, topic u32                                the group has popped the topic: how, when last, what expired
meta        ``n``    topic u32, queue u32                                first kept offset (u64), when it is not 0
meta        ``x``    topic u32, queue u32, first offset (u64)            offset behind a gap (u64), u8 1 = made by removals
meta        ``k``    side (1 byte), mark                                 first answer of the call that carried the mark
meta        ``l``    side (1 byte), time ms (u64), mark                  empty: marks by age
meta        ``a``    side (1 byte), store tag u32                        a store whose state was loaded (``Adopted``)
meta        ``i``    side (1 byte), mark                                 empty: a part of an unfinished load that was taken in
timers      –        tick ms (u64), first seq (u64)                      run of records (``runs``)
traces      ``h``    tick, seq                                           empty: a cancelled record inside a kept run
traces      ``c``    tick, seq                                           epoch: tombstone of a cancelled put
traces      ``d``    tick, first seq                                     epoch, seqs: tombstone of delivered puts
traces      ``k``    128-bit hash of (topic, key), tick, seq             empty: pending timers by key
queues      –        topic u32, queue u32, first offset (u64)            run of records
leases      ``l``    group u32, topic u32, queue u32, start, pop time    check point: leases of one pop on one queue
leases      ``e``    expiry ms (u64), lease key                          check points with running leases: empty, or 1 = it is a wait
leases      ``p``    time ms (u64), table, key                           empty: what ``maintain`` drops after that time
leases      ``o``    group u32, topic u32, queue u32                     FIFO run: what is not acked (``pops.state``)
leases      ``a``    128-bit hash of (group, topic, attempt id)          the check points that the attempt was given
==========  =======  ==================================================  ==========================================
"""

from __future__ import annotations

import hashlib
import struct
from typing import Final

SPACES: Final = ("meta", "timers", "traces", "queues", "leases")
META, TIMERS, TRACES, QUEUES, LEASES = range(5)

FORMAT_VERSION: Final = 2

FORMAT_KEY: Final = b"mformat"
EPOCH_KEY: Final = b"mepoch"
SEQ_KEY: Final = b"mseq"
SEAL_KEY: Final = b"mseal"
CURSOR_KEY: Final = b"mcursor"
NEXT_ID_KEY: Final = b"mnext_id"
POP_FLOOR_KEY: Final = b"mpop_floor"

COUNT: Final = b"c"
TOPIC: Final = b"t"
GROUP: Final = b"g"
GROUP_SETTINGS: Final = b"q"
NOTE: Final = b"o"
GONE: Final = b"z"
PROGRESS: Final = b"s"
DEAD: Final = b"d"
REGISTERED: Final = b"r"
KEPT: Final = b"n"
GAP: Final = b"x"
MARK: Final = b"k"
MARK_AGE: Final = b"l"
ADOPTED: Final = b"a"
IMPORTED: Final = b"i"

HOLE: Final = b"h"
CANCELLED: Final = b"c"
DELIVERED: Final = b"d"
KEY_INDEX: Final = b"k"

LEASE: Final = b"l"
EXPIRY: Final = b"e"
PURGE: Final = b"p"
ATTEMPT: Final = b"a"
FIFO: Final = b"o"

U32: Final = struct.Struct(">I")
U64: Final = struct.Struct(">Q")
PAIR: Final = struct.Struct(">QQ")
TICK_SEQ: Final = PAIR
QUEUE: Final = struct.Struct(">IIQ")
QUEUE_PREFIX: Final = struct.Struct(">II")
GROUP_QUEUE_KEY: Final = struct.Struct(">III")
LEASE_KEY: Final = struct.Struct(">IIIQQ")


def digest(*parts: str) -> bytes:
    """Return 16 bytes that name a tuple of texts; the texts are length-prefixed, so no two tuples share a digest by concatenation."""
    hashed = hashlib.blake2b(digest_size=16)
    for part in parts:
        data = part.encode()
        hashed.update(U64.pack(len(data)) + data)
    return hashed.digest()


def after_prefix(prefix: bytes) -> bytes:
    """Return the first key behind every key that starts with ``prefix``, of which some byte is not 0xff."""
    return (int.from_bytes(prefix, "big") + 1).to_bytes(len(prefix), "big")
