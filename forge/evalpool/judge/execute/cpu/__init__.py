"""A whole program on a CPU: launches by the evaluator of `ttir`, op nodes by torch.

Called by `child_cpu.py` of the room above, through `executor.py`. Imports torch only where an
operation runs.
"""
