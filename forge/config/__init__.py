"""What a run is told: the schema, and loading an experiment file with all its mistakes at once."""
