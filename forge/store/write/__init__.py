"""The single writer of a run's databases: a queue, an encoder thread, a writer thread.

The supervisor calls `open_writer`; readers never import from here.
"""
