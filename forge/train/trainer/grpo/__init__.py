"""GRPO: the clipped loss on samples that the host has played, judged and rewarded.

Called by `forge.train.trainer.__main__`. Imports nothing of `sft`.
"""
