"""Publishing weights: directories written beside training, and probes that check what an engine
serves.

Used by `sft` and `grpo`. Imports neither `model` nor the trainers.
"""
