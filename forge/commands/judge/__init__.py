"""`forge judge` and `forge problems check`: kernels and problems judged outside a run.

Called by `forge/cli/`. Imports no other command and no room of the supervisor that starts one.
"""
