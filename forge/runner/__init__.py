"""The supervisor of a run. Read `run.py` first.

`run.py` opens and closes a run, `work.py` runs its stages, `prepare_run.py` prepares for them,
`attempt.py` describes one start and keeps its status current, `past.py` reads earlier attempts. The
rooms: `plan`, `prepare` (model, data), `stages`, `weights` (versions from trainer to replicas),
`live` (progress, console, stopping), `outlets` (messages, reports, trackers). `status.py` has the
health of every process. Only `forge/commands/` and `forge/cli/` import from here.
"""
