"""Filters: what a pop lets through, written as a tag expression or in SQL92 (P10, docs/filters.md)."""

from rmqstore.filters.filter import Filter, Mask, PropertyColumns, columns_of
from rmqstore.filters.parsing import MAX_EXPRESSION, TagFilter, parse_filter

__all__ = ["MAX_EXPRESSION", "Filter", "Mask", "PropertyColumns", "TagFilter", "columns_of", "parse_filter"]
