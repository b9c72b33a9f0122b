"""The judge for other programs: in Python, over HTTP, as an OpenEnv environment, as a reward.

`calls.py` is `forge.judge`, `http` is `/v1/`, `openenv` is `forge judge --openenv`. `trl`, `verl`,
`slime` and `verifiers` are rewards in those frameworks, in their processes: they ask `forge judge
--serve` through `forge.client`, so neither torch nor a judge runs there (docs/how-to/
other-trainers.md). `verdict.py` needs the standard library only. Nothing here imports the
supervisor or a framework, except `verifiers.py`, whose classes are subclasses.
"""
