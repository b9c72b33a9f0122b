"""The trainer process, for both kinds of stage: settings, the loop, the client of
control.sock, ranks, the shared GPU, checkpoints.

Used by `sft` and `grpo`; of the trainer it imports `packed` alone.
"""
