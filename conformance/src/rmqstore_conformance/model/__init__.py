"""A model of a store, with lists and dicts, and machines that play random histories on both."""
