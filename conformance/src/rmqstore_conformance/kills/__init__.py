"""Workers that are killed, and books that say what must be there afterwards."""
