"""Publishing weights: directories written beside training, and probes that check what an engine
serves.

Used by `sft` and `grpo`; `export` is a separate child process, started by `forge export model`.
Imports neither `model` nor the trainers.
"""
