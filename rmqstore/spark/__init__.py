"""PySpark and rmqstore: stores as a data source, one shard a task. Needs the extra ``spark`` (PySpark 4.2 or newer) and Java 17."""
