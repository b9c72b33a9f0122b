"""Tables, views and roll-ups of a run's databases, as SQL; the migrations between versions.

Used by the writer, which creates and settles them, and by readers of older runs. Imports no other
room.
"""
