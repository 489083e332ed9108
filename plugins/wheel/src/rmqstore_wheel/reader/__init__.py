"""Reading an engine directory that somebody else may own."""
