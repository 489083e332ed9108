"""The same timers in other systems: one module for each, one workload for all; ``python -m rmqstore_benchmarks.peers``."""
