"""Races that are played by plan: threads take turns, one line of an engine at a time, and every answer is held against serial runs."""
