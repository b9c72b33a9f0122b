"""Inline assembly of kernels: PTX of pure arithmetic, run over arrays of registers.

`operands` has the operation and packs its blocks into registers, `machine` parses and runs a
template, `instructions` has the semantics of each instruction. Called by `semantics.operations`.
"""
