"""The report on a run of the grid: figures, findings, claims; one HTML page, one Markdown page, PNGs and their data.

It reads the tables of :mod:`rmqstore_benchmarks.grid.tables` with pyarrow, and needs neither an engine nor Java.
"""
