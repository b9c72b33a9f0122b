"""GRPO: TRL's GRPOTrainer on samples that were played, judged and rewarded elsewhere.

Called by `forge.train.trainer.__main__`. Imports nothing of `sft`.
"""
