"""The packed form of a batch: sequences with values for each trained token, cut into micro-batches,
and the forward pass that scores them.

Used by `model`, `child`, `sft` and `grpo`; imports none of them.
"""
