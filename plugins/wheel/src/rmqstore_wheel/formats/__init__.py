"""RocketMQ 5's files, byte for byte: pure functions over bytes, memoryviews, numpy arrays and Arrow columns, one module a file type.

All binary numbers are big-endian and signed (Java). Damage is :class:`~rmqstore.errors.CorruptStoreError` with the ``offset`` at fault;
its ``file`` is filled in by callers that know it.
"""
