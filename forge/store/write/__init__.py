"""The one writer of a run's database: a queue, an encoder thread, a writer thread.

`open_writer` is used by the supervisor; readers never import from here.
"""
