"""The supervisor of a run. Read `run.py` first.

`run.py` opens and closes a run and records the attempt, `work.py` prepares for its stages and
runs them, `past.py` reads earlier attempts. The rooms: `plan`, `prepare` (model, data), `stages`,
`weights` (versions from trainer to replicas), `live` (progress, console, stopping), `outlets`
(messages, reports, trackers). `status.py` has the health of every process. Only `forge/commands/`
and `forge/cli/` import from here.
"""
