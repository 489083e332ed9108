"""SQLite as a storage engine of rmqstore: the example that the page about writing an engine follows."""
