"""Compositions: an endless, seeded stream of modules over torch's operations and layers, written as
people write them. Pure text: nothing here imports torch or runs a module."""
