"""The run directory and its two databases: one writer, many readers.

The supervisor writes (`store.write`); views, commands and the TUI read (`store.reader`). Imports no
room but records: configuration comes in as values.
"""

from forge.store.layout import RunPaths, create_run, find_run
from forge.store.ownership import open_run_lock
from forge.store.reader import RunReader, open_run
from forge.store.write.writer import Writer, open_writer

__all__ = [
    "RunPaths",
    "RunReader",
    "Writer",
    "create_run",
    "find_run",
    "open_run",
    "open_run_lock",
    "open_writer",
]
