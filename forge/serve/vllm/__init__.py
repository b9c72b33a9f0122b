"""vLLM as an engine: for GPUs. Child process only, often with an interpreter of its own
(`serve.python`); started as `forge.serve.vllm.app`. Written against vLLM 0.24.
"""
