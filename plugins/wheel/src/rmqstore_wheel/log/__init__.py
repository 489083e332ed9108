"""The commit log and what follows from it: frames, calls, journaled state, consume queues, check points, replay."""
