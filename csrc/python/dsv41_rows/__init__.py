"""Engram rows of DeepSeek-V4.1 from disk: the row file, its packer and the store that reads it.

The format and the threading contract stand in `include/dsv41_rows/row_store.hpp`.
"""

from dsv41_rows._core import RowsError, RowStore, Ticket, engines, inspect, pack, source, verify

__all__ = ["RowStore", "RowsError", "Ticket", "engines", "inspect", "pack", "source", "verify"]
