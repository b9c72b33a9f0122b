"""The trainer child: torch, transformers, TRL and PEFT live here.

`python -m forge.train.trainer` trains one stage in `sft` or `grpo`; both load their model in
`model`, publish it in `publish` and share `child`. Started by `forge.train.handle`. Imports nothing
of the supervisor, the engines or the store: it speaks to the supervisor over control.sock.
"""
