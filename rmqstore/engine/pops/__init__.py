"""The pop side over an ``OrderedKV``, whatever its queues are kept in."""
