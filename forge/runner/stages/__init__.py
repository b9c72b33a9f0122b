"""The kinds of stages: `sft.py`, `grpo.py`, `evaluate.py`, and what they share.

Called by `forge/runner/work.py`. Never imports `forge/runner/status/` or `forge/commands/`.
"""
