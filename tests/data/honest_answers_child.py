"""Runs honest answers in the interpreter, or compiles them for a GPU without having one.

Started by test_honest_answers as `python honest_answers_child.py run|compile FILE.json`; prints a
JSON object: id to what went wrong.
"""

from __future__ import annotations

import json
import runpy
import sys
import time
from pathlib import Path
from typing import Any

MAX_LAUNCH_S = 0.03
"""The interpreter runs program after program; the judge evaluates all at once."""


def run(source: str, code: str, folder: Path) -> str:
    """Compare with the reference, with perturbed parameters, as the judge does."""
    import torch

    torch.manual_seed(0)
    reference, candidate = _load(source, folder / "ref.py"), _load(code, folder / "new.py")
    arguments = reference["get_init_inputs"]()
    model, answer = reference["Model"](*arguments), candidate["ModelNew"](*arguments)
    for parameter in model.parameters():
        parameter.data.mul_(0.7).add_(0.1 * torch.randn_like(parameter))
    answer.load_state_dict(model.state_dict())
    inputs = reference["get_inputs"]()
    with torch.no_grad():
        expected = model(*inputs)
        answer(*inputs)
        start = time.process_time()
        got = answer(*inputs)
        launch_s = time.process_time() - start
    if got.shape != expected.shape or got.dtype != expected.dtype:
        return f"{got.shape} {got.dtype} instead of {expected.shape} {expected.dtype}"
    rms = expected.square().mean().sqrt()
    worst = ((got - expected).abs() / (1e-4 * (rms + expected.abs()))).max().item()
    if not worst <= 0.5:
        return f"error of {worst:.2f} tolerances"
    return f"launch took {launch_s:.3f} s" if launch_s > MAX_LAUNCH_S else ""


def compile_to_ir(source: str, code: str, folder: Path) -> str:
    """Compile to Triton IR for an H100."""
    from triton._C.libtriton import ir
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, make_backend

    kernel = _load(code, folder / "new.py")["kernel"]
    constants = [param.name for param in kernel.params if param.is_constexpr]
    kinds = dict.fromkeys(constants, "constexpr")
    signature = {
        name: kinds.get(name, "*fp32" if name.endswith("_ptr") else "i32")
        for name in kernel.arg_names
    }
    target = GPUTarget("cuda", 90, 32)
    backend: Any = make_backend(target)
    options = backend.parse_options({})
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    ast_source = ASTSource(kernel, signature, constexprs=dict.fromkeys(constants, 32))
    functions = backend.get_codegen_implementation(options)
    modules = backend.get_module_map()
    ast_source.make_ir(target, options, functions, modules, context)
    return ""


def _load(source: str, path: Path) -> dict[str, Any]:
    path.write_text(source)  # triton reads a kernel's source from its file
    return runpy.run_path(str(path))


def main() -> None:
    check = {"run": run, "compile": compile_to_ir}[sys.argv[1]]
    path = Path(sys.argv[2])
    faults: dict[str, str] = {}
    for index, (problem_id, source, code) in enumerate(json.loads(path.read_text())):
        folder = path.parent / str(index)
        folder.mkdir()
        try:
            fault = check(source, code, folder)
        except Exception as err:  # the test prints it
            fault = repr(err)
        if fault:
            faults[problem_id] = fault
    sys.stdout.write(json.dumps(faults))


if __name__ == "__main__":
    main()
