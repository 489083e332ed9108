"""RocksDB as a storage engine of rmqstore."""
