"""Evaluates kernels with KernelBench's own `eval_kernel_against_ref` in this process.

`bench/agreement.py` starts it with a checkout's `src` on PYTHONPATH and sends `{reference, code}`
as a line of JSON each; the answer is a line `{is_correct, detail, is_other}`. Everything that the
evaluation prints goes to stderr. `kernelbench/utils.py` imports clients of language models that no
evaluation calls: where one is not installed, an empty module takes its place.
"""

import contextlib
import importlib.util
import json
import sys
from typing import Any
from unittest import mock

import torch

for _client in ("dotenv", "litellm", "openai", "requests"):
    if importlib.util.find_spec(_client) is None:
        sys.modules[_client] = mock.MagicMock()

from kernelbench.eval import (  # noqa: E402 # pyright: ignore[reportMissingImports]
    eval_kernel_against_ref,
)


def is_other(reference: str) -> bool:
    """True if the evaluation computes another problem: it casts every tensor of `get_inputs()` and
    every floating parameter to fp32, indices and masks too; and it hands a candidate the tensors
    that the reference has changed in place."""
    names: dict[str, Any] = {}
    exec(reference, names)
    model = names["Model"](*names["get_init_inputs"]())
    state = [one for one in model.state_dict().values() if one.is_floating_point()]
    inputs = names["get_inputs"]()
    given = [one for one in inputs if isinstance(one, torch.Tensor)]
    if any(one.dtype != torch.float32 for one in [*given, *state]):
        return True
    before = [one.clone() for one in given]
    with torch.no_grad():
        model(*inputs)
    return not all(torch.equal(one, kept) for one, kept in zip(given, before, strict=True))


def evaluate(reference: str, code: str) -> dict[str, object]:
    """The result of five correctness trials."""
    result = eval_kernel_against_ref(
        reference,
        code,
        num_correct_trials=5,
        measure_performance=False,
        device=0,
        backend="triton",
    )
    if result is None:
        return {"is_correct": False, "detail": "no result"}
    facts = {name: str(value)[:200] for name, value in result.metadata.items()}
    detail = f"compiled {result.compiled}, correct {result.correctness}: {facts}"
    return {"is_correct": bool(result.compiled and result.correctness), "detail": detail}


def main() -> None:
    """Answers line by line until stdin ends."""
    for line in sys.stdin:
        asked = json.loads(line)
        with contextlib.redirect_stdout(sys.stderr):
            other = is_other(asked["reference"])
            try:
                answer = evaluate(asked["reference"], asked["code"])
            except Exception as error:  # a candidate may raise anything
                answer = {"is_correct": False, "detail": f"{type(error).__name__}: {error}"[:300]}
            answer["is_other"] = other
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
