"""The engine child's half of serving: the HTTP app, its wire formats, the thread that steps.

Imported by the engine packages `llama`, `hf` and `vllm`, each in its own process;
never by the host.
"""
