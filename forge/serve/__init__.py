"""Inference: engines in child processes, one client for all of them, replicas kept alive.

`replicas.open_replicas` starts the engines of a run, `remote` connects to engines that run already,
`front` serves replicas to other processes. Called by the runner and by commands; an engine's own
modules (`hf`, `llama`, `vllm`) run in its child only. Never imports the loop, the judges or the
store. This file imports nothing: a plan needs `engines` and no numpy.
"""
