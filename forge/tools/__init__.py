"""Tools for a model that writes kernels: `docs`, `run` and `profile`. They run in rollouts
(`[rollout] tools`) and for other agents (`forge mcp`).

Called by the loop, the supervisor and commands. What a candidate does runs in a judge's sandbox:
`toolbox` asks the pool. Never imports the pool, or triton outside of a child.
"""
