"""What a disk may hold when the power goes: a model of it, and the two ways to feed that model.

An engine of any kind is recorded from outside, by its system calls (:mod:`.tracing`, :mod:`.replaying`). One that goes to the disk through
a seam of its own may record the calls there and feed the :class:`~.volume.Volume` itself, which is faster and finds the same states.
"""
