"""The load test: producers and consumers in Spark tasks, injected failures, and a ledger that must close by id (docs/load-test.md)."""
