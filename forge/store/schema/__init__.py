"""Tables, roll-ups and views of a run's databases, as SQL: `tables`, `rollups`, `views`, `create`.

Used by the writer, which creates and settles them, and by readers. Imports no other room.
"""
