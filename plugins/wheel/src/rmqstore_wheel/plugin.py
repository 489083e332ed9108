"""What the distribution announces."""

from __future__ import annotations

from rmqstore.contract.engine import Capabilities, Durability, EngineInfo, Setting, Support, same_durability
from rmqstore.hookspecs import hookimpl

INFO = EngineInfo(
    name="wheel",
    capabilities=Capabilities(
        durability=same_durability(sync=Durability.POWER_LOSS, asynchronous=Durability.PROCESS_CRASH),
        fifo=Support.FULL,
        sql92_filter=Support.FULL,
        retention=Support.FULL,
        read_only_open=Support.FULL,
        import_state=Support.FULL,
        pop_buffer=Support.FULL,
    ),
    factory="rmqstore_wheel.engine:WheelEngine",
    install_hint="pip install rmqstore-wheel",
    preference=40,
    settings=(
        Setting(
            key="wheel.log_file_mib",
            type=int,
            default=1024,
            doc="length of a file of the commit log, MiB; RocketMQ's is 1024",
            minimum=8,
            maximum=1024,
            baked=True,
        ),
        Setting(
            key="wheel.copy_live_percent",
            type=int,
            default=30,
            doc="when less of the oldest files of the commit log is live, what is live is copied forward and the files go; 0: never copied",
            minimum=0,
            maximum=80,  # as much at least is live in a file of copies of small messages (``reclaim``)
        ),
        Setting(
            key="wheel.check_point_mib",
            type=int,
            default=64,
            doc="after so much of the commit log a check point is written; an open after a crash reads so much again",
            minimum=1,
            maximum=1024,
        ),
        Setting(
            key="wheel.roll",
            type=str,
            default="reference",
            choices=("reference", "copy"),
            doc="timers beyond two days are put nearer to their time by a reference to their message, or by a copy of it, as RocketMQ does",
        ),
        Setting(
            key="wheel.revive_log",
            type=bool,
            default=True,
            doc="write RocketMQ's check points and acks beside each lease; the engine itself does not read them",
        ),
    ),
    inspector="rmqstore_wheel.inspecting:inspect",
)


@hookimpl
def rmqstore_engines() -> list[EngineInfo]:
    """Announce the engine."""
    return [INFO]
