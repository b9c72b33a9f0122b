"""Evaluates one kernel with KernelBench's own `eval_kernel_against_ref` in this process.

`bench/judge.py` spawns it with a checkout's `src` on PYTHONPATH and `{reference, code}` as JSON on
stdin.
"""

import json
import sys
import time

import torch
from kernelbench.eval import eval_kernel_against_ref  # pyright: ignore[reportMissingImports]

asked = json.load(sys.stdin)
began = time.monotonic()
result = eval_kernel_against_ref(
    asked["reference"],
    asked["code"],
    num_correct_trials=5,
    num_perf_trials=100,
    measure_performance=True,
    device=torch.device("cuda:0"),
    backend="triton",
)
answer = {"compiled": None, "correctness": None}
if result is not None:
    answer = {"compiled": result.compiled, "correctness": result.correctness}
print(json.dumps({**answer, "evaluation_s": round(time.monotonic() - began, 2)}))
