"""What stands on the calls of a store: workers, which pop messages and give them to a function."""
