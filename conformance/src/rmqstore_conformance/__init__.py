"""The conformance suite of rmqstore: a pytest plug-in that tries to refute a storage engine, clause by clause.

Run it from anywhere, against any installed engine::

    rmqstore conformance NAME --report report.html
    pytest --pyargs rmqstore_conformance --rmq-engine NAME

The clauses are those of docs/contract.md. Nothing in the suite names an engine; what a case needs beside the core, it says by the names
of fields of :class:`rmqstore.contract.Capabilities`.
"""

from __future__ import annotations

from typing import Final

SUITE_VERSION: Final = "1.0"
"""Grows with each case that is added. ``--rmq-suite-version`` leaves out what is newer."""
