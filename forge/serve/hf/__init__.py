"""Transformers as an engine: slow, exact, and right for every architecture that the trainer can
train. Child process only; started as `forge.serve.hf.app`.
"""
