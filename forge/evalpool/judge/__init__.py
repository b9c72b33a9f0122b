"""The judge child. Read `trial.py` first: one candidate from source to verdict.

app       the trusted process: HTTP, owns the rest
trial     screen → sandbox → compile and first call → further inputs → ghost → verdict
screen    what the source alone may not say
spawner   handle on the zygote; proof looks at each child's sandbox from outside
references, oracle   what a candidate is given and compared with, made in a sandbox too; oracles:
                     who draws for more than one problem, by `contained`
zygote    forks children into sandbox (root, seccomp, linux: what it is made of); launcher starts it
runner, session   untrusted: run the candidate; compile, warmup: Triton without a GPU
frames, shm, compare, words   how they talk, share, agree, and what the model is told
"""
