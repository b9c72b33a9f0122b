"""The embedded engine: llama.cpp with our own batched loop.

A child process, started as `forge.serve.llama` by `forge.serve.replicas`. Imports neither
torch nor another engine.
"""
