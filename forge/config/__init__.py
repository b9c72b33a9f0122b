"""What a run is told: the schema, and loading an experiment file with all its mistakes at once.

`schema` is the words, `load.load_experiment` the way in, `dump.dump_experiment` the way back.
Nothing is imported here, since `forge --help` must not pay for pydantic.
"""
