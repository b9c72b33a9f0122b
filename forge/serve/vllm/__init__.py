"""The vLLM engine, for GPUs. Written for vLLM 0.24.

A child process, often with its own interpreter (`serve.python`), started as `forge.serve.vllm`
by `forge.serve.replicas`. Imports no other engine.
"""
