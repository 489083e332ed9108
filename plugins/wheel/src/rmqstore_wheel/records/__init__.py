"""Messages as records of the commit log: their parts, their sums, and their way to a queue."""
