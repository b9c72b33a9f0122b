"""What leaves a trainer: directories of weights, written beside training, and the probes that prove
that an engine serves them.

Used by `sft` and `grpo`. Imports neither the model's room nor the trainers.
"""
