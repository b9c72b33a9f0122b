"""The supervisor of a run. Read `run.py` first.

`run.py` opens the run's processes and closes them, `work.py` goes through the stages, `attempt.py`
records one try at it, `background.py` runs what goes on beside the stages. The rooms: `plan`
(decisions before anything starts), `prepare` (model, data), `stages` (one file a kind of stage),
`weights` (versions from trainer to replicas), `live` (progress, console, stopping), `status`
(health of every process), `outlets` (messages, reports, trackers). Only `forge/commands/` and
`forge/cli/` import from here.
"""
