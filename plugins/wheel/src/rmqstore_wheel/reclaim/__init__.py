"""Files of the commit log that go: what is live in them, and copies of it."""
