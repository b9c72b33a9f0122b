"""`forge judge` and `forge problems check`: judge kernels and examine problems outside a run.

Called by `forge/cli/`. Never imports the supervisor.
"""
