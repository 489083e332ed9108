"""The cases, by the part of the contract that they try to refute; run them with ``--rmq-engine NAME``."""
