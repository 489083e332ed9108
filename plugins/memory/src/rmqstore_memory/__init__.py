"""A storage engine of rmqstore that lives in memory; the template for engine authors."""
