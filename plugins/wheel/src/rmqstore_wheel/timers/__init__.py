"""The timer side: the wheel over the timer log, the table of timers, the index of keys."""
