"""Compiles TTIR to a binary of the target: checks it, compiles it in a sandboxed child, caches it.

Called by the judge. The text is hostile, the code here is ours. Never imports `capture`.
"""
