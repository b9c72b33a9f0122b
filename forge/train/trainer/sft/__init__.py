"""Supervised fine-tuning on rows that the host has tokenised.

Called by `forge.train.trainer.__main__`. Imports nothing of `grpo`.
"""
