"""The model that is trained: loaded with its adapter and its attention, or made at random with a
tokenizer of its own.

Used by `sft` and `grpo`; `init_model` is a child process of its own, started by
`forge.train.handle`. Imports nothing of what is done with the model.
"""
