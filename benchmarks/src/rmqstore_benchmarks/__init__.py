"""Measurements of rmqstore's engines beside the raw databases (``speed``), and their load test from Spark (``load``)."""
