"""Measurements of rmqstore's engines: beside the raw databases (``speed``), and as a Spark job (``spark_run``)."""
