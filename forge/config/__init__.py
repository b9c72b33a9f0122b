"""Experiment files: `load_experiment` reads and checks one, `dump_experiment` writes one, and
`forge keys` describes every key.

Called by commands and the supervisor; other rooms use `forge.config.schema` only. Nothing is
imported here, since `forge --help` must start without pydantic.
"""
