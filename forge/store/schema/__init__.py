"""Tables, views and roll-ups of a run's databases, as SQL; the migrations between versions."""
