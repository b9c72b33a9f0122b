"""Supervised fine-tuning: TRL's SFTTrainer on rows that the host has tokenised.

Called by `forge.train.trainer.__main__`. Imports nothing of `grpo`.
"""
