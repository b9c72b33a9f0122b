"""The vLLM engine, for GPUs. Written for vLLM 0.24, often with its own interpreter."""
