"""The part of an engine child that all engines share: HTTP endpoints, the thread that steps, random
draws, checks of published directories.

Called by the engine packages `llama`, `hf` and `vllm`, each in its own process. Never imported by
the host, and imports no engine.
"""
