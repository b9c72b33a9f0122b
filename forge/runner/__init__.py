"""The supervisor of a run. Read `run.py` first.

`run.py` opens and closes a run, `work.py` runs its stages, `prepare_run.py` prepares for them,
`attempt.py` describes one start and keeps its status current, `past.py` reads earlier attempts. The
rooms: `plan` (decisions before anything starts), `prepare` (model, data), `stages` (one file a kind
of stage; `BatchShelf` and `desk` hand batches to the trainer), `weights` (versions from trainer to
replicas), `live` (progress, console, stopping), `outlets` (messages, reports, trackers). The health
of every process is in `status.py`. Only `forge/commands/` and `forge/cli/` import from here.
"""
