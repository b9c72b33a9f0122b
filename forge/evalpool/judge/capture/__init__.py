"""Turns a candidate into a program: its host code runs on fake CUDA tensors, without a GPU or data.

Untrusted: everything here runs in a sandboxed child beside the candidate. Called by the zygote, for
the judge. Imports `program` and the child side of the channel; never `execute`, `numbers` or a
reference.
"""
