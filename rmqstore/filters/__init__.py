"""Filters: what a pop lets through, written as a tag expression or in SQL92 (P10, docs/filters.md)."""

from rmqstore.filters.filter import MAX_EXPRESSION, Filter, Sql92Filter, TagFilter, parse_filter

__all__ = ["MAX_EXPRESSION", "Filter", "Sql92Filter", "TagFilter", "parse_filter"]
