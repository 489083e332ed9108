"""Reading an engine directory that another process may own."""
