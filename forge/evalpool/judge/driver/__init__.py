"""The GPU's driver by ctypes, and memory that two processes of a judge share.

Called by the judge, by oracles and by executors, in torch's primary context. CUDA's calls, and
HIP's by their names: structures and numbers are the same. HIP is tested on a made-up library only:
no card was at hand. Imports nothing of the other rooms, since children see none of them.
"""
