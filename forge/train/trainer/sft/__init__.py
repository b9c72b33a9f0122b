"""Supervised fine-tuning: TRL's SFTTrainer on rows tokenised by the host.

Called by `forge.train.trainer.__main__`. Imports nothing of `grpo`.
"""
