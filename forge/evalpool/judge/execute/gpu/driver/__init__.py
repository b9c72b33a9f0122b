"""Calls of the GPU driver by ctypes: modules, launches, virtual memory, tensor maps.

Used by the executor's process alone, in torch's primary context. Structures and numbers are the
same for CUDA and HIP, except where `NAMES` has no entry: such a call raises Unsupported. HIP's
names are tested on a made-up library only: no card was at hand.
"""
