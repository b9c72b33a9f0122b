"""The judge child: a candidate from its source to its verdict.

Without a GPU a candidate becomes a program, and the program is judged. Read `trial/cpu_trial.py`
first; the rooms in its order:

    capture    untrusted: the candidate's host code on fake tensors, out comes a program
    program    the program: format, bytes, dataflow, policy
    compiler   TTIR to binaries, checked and cached
    ttir       TTIR parsed, verified and evaluated
    execute    programs run: on a CPU by the evaluator, on a GPU by the driver (not in use yet)
    numbers    inputs that wrong kernels fail on, and tolerances
    trial      the judge's side of all that

Beside them lie the trusted process (`app`), its children (`spawner`, `zygote`, `oracle`), their
sandbox, and the judge for GPUs, which runs a candidate's own process behind a screen of its source
(`gpu_trial`, `gpu_runner`, `screen`).
"""
