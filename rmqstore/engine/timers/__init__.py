"""The timer side over an ``OrderedKV``."""
