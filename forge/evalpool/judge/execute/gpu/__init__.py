"""The executor's process on a GPU: maps a program's buffers, launches its kernels, times them.

Entered by `nursery.py`, which `executors.py` of the room above starts. Our code alone runs
here, and a program's kernels: no candidate's Python, no seed, no expected output, no verdict.
"""
