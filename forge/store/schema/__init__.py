"""Tables, views and roll-ups of a run's database, as SQL. Executes at open; imports no writer."""
