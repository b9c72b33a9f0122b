"""Inline assembly of kernels: PTX of pure arithmetic, run over arrays of registers.

`machine` packs blocks into registers, parses a template and runs it; `instructions` has the
semantics of each instruction. Called by `semantics.operations`.
"""
