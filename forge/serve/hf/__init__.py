"""The transformers engine: slow, exact, correct for every architecture that the trainer can train.

A child process, started as `forge.serve.hf` by `forge.serve.replicas`. Imports no other
engine.
"""
