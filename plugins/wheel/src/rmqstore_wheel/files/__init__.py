"""Files as the engine uses them: the disk, chains of files, units in them, bitmaps, and the marks of an open store."""
