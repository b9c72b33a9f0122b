"""Rewards of verdicts, returns of turns, advantages in a group; and a reward function of the user.

    formulas   called by the rollout loop: pure functions
    scorer     the host's side of `reward.function`, opened by the runner and handed to the loop as
               a port; `forge run` and `forge resume` try the function before anything starts
    function   its child process

Host side and child know verdicts and terms only: no store, no judge, no torch.
"""
