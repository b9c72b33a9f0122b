"""Turns a candidate into a program: its host code runs on fake CUDA tensors, without a GPU or data.

Untrusted: everything here runs in a sandboxed child beside the candidate. Called by the zygote, for
the judge. Imports `program`, the child side of the channel and what constructs and walks models
(`reference.construct`, `numbers.called`); never `execute` or a reference.
"""
