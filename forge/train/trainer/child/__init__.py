"""The trainer process, for both kinds of stage: settings, arguments for TRL, the client of
control.sock, ranks, the shared GPU, checkpoints.

Used by `sft` and `grpo`; imports no other room of the trainer.
"""
