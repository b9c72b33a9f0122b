"""The kernel of `RoundingAdamW`, drawn often, against exact arithmetic. Prints JSON for each tensor
that it writes: the largest relative gap, the mean one, and how many values one number got.
"""

import json
import sys

import torch

from forge.train.trainer.child import trainer
from forge.train.trainer.child.rounding_kernel import update

NUM, SIZE = 60, 1500

if __name__ == "__main__":
    torch.set_num_threads(1)
    draw = torch.Generator().manual_seed(0)
    p, grad, first, second = (torch.randn(SIZE, generator=draw).bfloat16() for _ in range(4))
    given = (p, grad, first, second.abs())
    factors = trainer._factors(3, lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    exact: list[torch.Tensor] = []
    trainer._store = lambda value, target: exact.append(value.clone())
    trainer._update(*given, **factors)
    drawn: list[list[torch.Tensor]] = [[] for _ in given]
    for seed in range(NUM):
        found = [each.clone() for each in given]
        update(*found, seed=seed, **factors)
        for values, each in zip(drawn, found, strict=True):
            values.append(each.float())
    report = []
    for number, want in zip((2, 3, 0), exact, strict=True):
        values = torch.stack(drawn[number])
        gap = (values - want) / want.abs()
        report.append({
            "gap": float(gap.abs().max()),
            "bias": float(gap.mean()),
            "values": len(values[:, 7].unique()),
        })  # fmt: skip
    sys.stdout.write(json.dumps(report))
