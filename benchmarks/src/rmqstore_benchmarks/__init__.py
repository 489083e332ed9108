"""Measurements of rmqstore's engines: the grid and its report, other systems beside them, Spark; and their load test (``load``)."""
