"""The model to train: loaded with its adapter and attention, or made with random weights and a new
tokenizer.

Used by `sft` and `grpo`; `init_model` is a separate child process, started by `forge.train.handle`.
Imports neither the trainers nor `publish`.
"""
