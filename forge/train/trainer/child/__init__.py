"""The trainer process, whichever stage it trains: its settings, the arguments that TRL gets, the
client of control.sock, ranks, the GPU it shares, checkpoints.

Used by `sft` and `grpo`; imports no other room of the trainer.
"""
