"""Prompts: a problem's first messages, feedback on attempts, and what fits the context.

Called by the rollout loop, evaluations, chat and the makers of SFT rows, so that trained and played
prompts are the same. Imports no judge, store or engine.
"""
