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
    _process_input_tensor,
    eval_kernel_against_ref,
    load_custom_model_with_tempfile,
    load_original_model_and_inputs,
    run_and_check_correctness,
    set_seed,
)
from kernelbench.kernel_static_checker import (  # noqa: E402 # pyright: ignore[reportMissingImports]
    validate_kernel_static,
)

INTERPRETER_LIMITS = ("InterpreterError", "active drivers")
"""Parts of errors where Triton's interpreter cannot run a kernel that a card runs."""


def is_other(reference: str) -> bool:
    """True if the evaluation computes another problem: it casts every tensor of `get_inputs()` and
    every floating parameter to fp32, indices and masks too; and it hands a candidate the tensors
    that the reference has changed in place. Raises what the reference does on the card."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    names: dict[str, Any] = {}
    exec(reference, names)
    model = names["Model"](*names["get_init_inputs"]()).to(device)
    state = [one for one in model.state_dict().values() if one.is_floating_point()]
    inputs = [
        one.to(device) if isinstance(one, torch.Tensor) else one for one in names["get_inputs"]()
    ]
    given = [one for one in inputs if isinstance(one, torch.Tensor)]
    if any(one.dtype != torch.float32 for one in [*given, *state]):
        return True
    before = [one.clone() for one in given]
    with torch.no_grad():
        model(*inputs)
    return not all(torch.equal(one, kept) for one, kept in zip(given, before, strict=True))


def evaluate(reference: str, code: str) -> dict[str, object]:
    """The result of the static check and of five correctness trials."""
    is_valid, errors, _ = validate_kernel_static(code, backend="triton", precision="fp32")
    if not is_valid:
        return {"is_correct": False, "detail": f"static check: {errors}"}
    if not torch.cuda.is_available():
        return evaluate_on_cpu(reference, code)
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


def evaluate_on_cpu(reference: str, code: str) -> dict[str, object]:
    """What `eval_kernel_against_ref` does between its calls of CUDA, with an interpreted kernel."""
    model, get_init_inputs, get_inputs = load_original_model_and_inputs(reference, {})
    set_seed(42)
    init = [_process_input_tensor(one, "cpu", "triton") for one in get_init_inputs()]
    with torch.no_grad():
        set_seed(42)
        original = model(*init)
        answer, _ = load_custom_model_with_tempfile(code, entry_point="ModelNew")
        set_seed(42)
        custom = answer(*init)
    with mock.patch("torch.cuda.synchronize"):
        result = run_and_check_correctness(
            original, custom, get_inputs, metadata={}, num_correct_trials=5, seed=42, device="cpu",
            backend="triton", precision=torch.float32,
        )  # fmt: skip
    facts = {name: str(value)[:200] for name, value in result.metadata.items()}
    return {
        "is_correct": result.correctness,
        "detail": f"on a CPU: {facts}",
        "is_other": any(limit in str(facts) for limit in INTERPRETER_LIMITS),
    }


def main() -> None:
    """Answers line by line until stdin ends."""
    for line in sys.stdin:
        asked = json.loads(line)
        with contextlib.redirect_stdout(sys.stderr):
            other = True  # a reference that fails here is no problem of KernelBench's
            try:
                other = is_other(asked["reference"])
                answer = evaluate(asked["reference"], asked["code"])
            except Exception as error:  # a candidate may raise anything
                answer = {"is_correct": False, "detail": f"{type(error).__name__}: {error}"[:300]}
            answer["is_other"] = other or bool(answer.get("is_other"))
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
