"""Triton's IR as text: a parser, a verified tree, the closed list of operations, an evaluator.

Called by `compiler`, which checks a kernel, and by `execute`, which runs it on a CPU. Imports
`program` and numpy; neither torch nor triton.
"""
