"""A captured program: storages, tensors, kernels as TTIR, nodes; its bytes, its checks, its policy.

Called by the capture child, which writes one, and by the judge, which parses, bounds and judges it.
Plain data: imports neither torch nor triton, and nothing of `capture`, `compiler` or `execute`.
"""
