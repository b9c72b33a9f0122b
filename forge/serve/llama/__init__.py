"""The embedded engine: llama.cpp behind our own batched loop. Child process only; started as
`forge.serve.llama.app`.
"""
