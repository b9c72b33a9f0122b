"""Rewrites what torch.compile's Inductor would compile into a plain Triton module. Host code.

`rewrite` reads the text (source.py), turns what surrounds the kernels into steps (call.py), writes
the kernels in Triton's own words (kernel.py) and as a person would (rewrite.py), and prints the
module (module.py). It parses, and never runs what it reads. Called by `compiler/`, which traces.
"""
