"""The kinds of stages: `sft.py`, `grpo.py`, `evaluate.py`, `search.py`, and what they share."""
