"""The judge child: a candidate from its source to its verdict.

A candidate becomes a program, and the program is judged. Read `trial/judgement.py` first; the rooms
in its order:

    capture    untrusted: runs the candidate's host code on fake tensors, records a program
    program    the program: format, bytes, dataflow, policy
    compiler   TTIR to binaries, checked and cached
    ttir       TTIR parsed, verified and evaluated
    execute    programs run: on a CPU by the evaluator, on a GPU by the driver
    numbers    inputs of a problem, calls of its reference, tolerances
    wide       sets with plants, programs in float64, the comparison and its words
    timing     times on a GPU, speed-ups, measured baselines
    trial      the judge's side: a candidate's steps to its verdict; `trial/gpu` on a GPU

    reference  third-party code: children that draw inputs and examine a problem
    children   zygote and spawner: the processes that run code of others
    sandbox    what such a process may see and do, and the proof of it
    channel    frames, shared memory and texts between them and the judge
    driver     calls of the card's driver, and memory on the card that processes share

`app` is the judge's own process.
"""
