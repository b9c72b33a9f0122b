"""Rewards by a function of the user (`reward.function`), called in a process of its own.

The runner opens a scorer beside the judges and hands it to the rollout loop as a port; `forge run`
and `forge resume` try the function before anything starts. Host side and child know verdicts and
terms only: no store, no judge, no torch.
"""
