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
    ),
    factory="rmqstore_wheel.engine:WheelEngine",
    install_hint="pip install rmqstore-wheel",
    preference=40,
    settings=(
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
