"""What a disk may hold when the power goes: a model of it, and how a process of any engine is recorded from outside to feed that model.

It is recorded by its system calls (:mod:`.tracing`, :mod:`.replaying`), or by a file system of the suite's own (:mod:`.fusing`).
"""
