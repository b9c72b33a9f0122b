"""The run directory and its two databases: one writer, many readers.

The supervisor writes (`store.write`); views, commands and the TUI read (`store.reader`). Imports no
room but records: configuration comes in as values.
"""
