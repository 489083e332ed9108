"""Filters: what a pop lets through, written as a tag expression or in SQL92 (P10, docs/filters.md)."""

from rmqstore.filters.columns import columns_of
from rmqstore.filters.filter import Filter, Mask, PropertyColumns
from rmqstore.filters.parsing import MAX_EXPRESSION, parse_filter
from rmqstore.filters.tags import TagFilter

__all__ = ["MAX_EXPRESSION", "Filter", "Mask", "PropertyColumns", "TagFilter", "columns_of", "parse_filter"]
