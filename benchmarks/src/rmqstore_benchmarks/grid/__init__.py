"""The comparison of engines: a grid of cells (engine, workload, body, backlog, durability), run by Spark, one store a task."""
