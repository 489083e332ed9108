"""LMDB as a storage engine of rmqstore."""
