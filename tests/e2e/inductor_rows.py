"""Makes answers as torch.compile's Inductor writes them, with a GPU or without.

A row is the code that Inductor generates for sm_90, followed by the problem's class, whose forward
calls it: the shape of KernelBook's rows. Inductor generates before it compiles, so that no GPU is
needed: tensors are fake CUDA tensors, and the few questions about the card are answered as an H100
would.
"""

from __future__ import annotations

import ast
import contextlib
import copy
import functools
import types
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn
from unittest import mock

import torch
import torch._inductor.graph
import torch.utils._triton
import triton
from torch._dynamo.device_interface import CudaInterface
from torch._inductor import compile_fx, config
from torch._inductor.fx_passes import joint_graph, pad_mm, post_grad
from torch._inductor.runtime.hints import DeviceProperties
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from triton.backends.compiler import GPUTarget

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """An answer that Inductor made."""

    name: str
    problem: str
    answer: str


class _Generated(BaseException):
    """Ends a compilation when its code is there. No Exception, which Inductor would wrap."""

    def __init__(self, code: str) -> None:
        self.code = code


def make_row(name: str, problem: str, *, trains: bool = False) -> Row:
    """The row of a problem. Raises what torch raises for a problem that it cannot compile.

    Args:
        name: Name of the row.
        problem: Source with `Model`, `get_inputs` and `get_init_inputs`.
        trains: True if forward also returns what a backward would need, as in KernelBook.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        fake = FakeTensorMode(allow_non_fake_inputs=True)
        model, inputs = _subject(problem, fake)
        if not torch.cuda.is_available():
            _pretend(stack)
        code, num_outputs, is_tuple = _generate(model, inputs, fake, trains=trains)
    held = [*dict(model.named_parameters()), *dict(model.named_buffers())]
    entry = _entry(problem, [_attribute(one) for one in held], num_outputs, is_tuple=is_tuple)
    return Row(name=name, problem=problem, answer=f"{code.strip()}\n\n\n{entry}\n")


def num_bytes(problem: str) -> int:
    """Bytes of a problem's inputs, parameters and buffers."""
    model, inputs = _subject(problem, FakeTensorMode(allow_non_fake_inputs=True))
    given = [*model.parameters(), *model.buffers(), *pytree.tree_leaves(inputs)]
    return sum(one.nbytes for one in given if isinstance(one, torch.Tensor))


def _subject(problem: str, fake: FakeTensorMode) -> tuple[Any, list[Any]]:
    """Model and inputs; fake ones, which take no memory, unless the problem looks into them."""
    module = types.ModuleType("problem")
    exec(problem, module.__dict__)
    torch.manual_seed(0)
    try:
        with fake:
            return module.Model(*module.get_init_inputs()), module.get_inputs()
    except Exception:
        return module.Model(*module.get_init_inputs()), module.get_inputs()


def _generate(
    model: Any, inputs: list[Any], fake: FakeTensorMode, *, trains: bool
) -> tuple[str, int, bool]:
    """The code, the number of the model's outputs, and whether it returns several.

    Tensors are fake with a GPU too, as in torch.compile: real ones would be without values, and an
    index without a value ends the process's use of the GPU.
    """
    with fake, torch.set_grad_enabled(trains):
        state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        given = [*(_on_card(one, trains=trains) for one in state.values())]
        given += [_on_card(one, trains=False) for one in inputs]
        structure: list[Any] = []

        def flat(*values: Any) -> list[Any]:
            held = dict(zip(state, values, strict=False))
            result = torch.func.functional_call(model, held, values[len(state) :])
            structure[:] = [result]
            return pytree.tree_leaves(result)

        code = _code(make_fx(flat)(*given), given)
    (result,) = structure
    return code, len(pytree.tree_leaves(result)), isinstance(result, tuple | list)


def _code(graph: Any, given: list[Any]) -> str:
    """The text that Inductor would compile for a graph."""

    def stop(lowering: Any) -> NoReturn:
        made, *_ = lowering.codegen()
        raise _Generated(getattr(made, "value", made))

    owner = torch._inductor.graph.GraphLowering
    name = "_compile_to_module" if hasattr(owner, "_compile_to_module") else "compile_to_module"
    caches = config.patch(force_disable_caches=True)
    with mock.patch.object(owner, name, stop), caches:
        try:
            compile_fx.compile_fx(graph, given)
        except _Generated as done:
            return done.code
    raise RuntimeError("Inductor generated no code: the graph has no operation")


def _on_card(value: Any, *, trains: bool) -> Any:
    """A CUDA tensor like the given one; fake where there is no card."""
    if not isinstance(value, torch.Tensor):
        return value
    made = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="cuda")
    return made.requires_grad_(trains and value.requires_grad)


@functools.cache
def _prepare_patterns() -> None:
    """Inductor's patterns, traced on the CPU: it would trace them on the card."""
    joint_graph.lazy_init(torch.device("cpu"))
    post_grad.lazy_init(torch.device("cpu"))


def _pretend(stack: contextlib.ExitStack) -> None:
    """Answers Inductor's questions about a card until the stack is left."""
    _prepare_patterns()
    for owner, name, value in _answers():
        stack.enter_context(mock.patch.object(owner, name, value))


class _OnCpu(TorchDispatchMode):
    """Makes on the CPU what would be made on the card."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = dict(kwargs or {})
        if getattr(given.get("device"), "type", "") == "cuda":
            given["device"] = torch.device("cpu")
        return func(*args, **given)


class _FolderOnCpu(joint_graph.UniformValueConstantFolder):
    """Inductor's folding of constants, which runs small operations."""

    def run(self) -> Any:
        with _OnCpu():
            return super().run()


def _answers() -> Iterator[tuple[Any, str, Any]]:
    """Attributes to replace: owner, name, value."""
    card = types.SimpleNamespace(
        name="NVIDIA H100 80GB HBM3", major=9, minor=0, multi_processor_count=132,
        total_memory=80 << 30, regs_per_multiprocessor=65536, warp_size=32,
        max_threads_per_multi_processor=2048, max_threads_per_block=1024,
        shared_memory_per_block=49152, shared_memory_per_block_optin=232448,
        shared_memory_per_multiprocessor=233472, L2_cache_size=50 << 20, gcnArchName="",
    )  # fmt: skip
    hints = DeviceProperties(
        type="cuda", index=0, multi_processor_count=132, cc=90, major=9, warp_size=32,
        regs_per_multiprocessor=65536, max_threads_per_multi_processor=2048,
    )  # fmt: skip
    driver = types.SimpleNamespace(
        get_current_target=lambda: GPUTarget("cuda", 90, 32), get_current_device=lambda: 0
    )
    state = torch.zeros(16, dtype=torch.uint8)
    yield from (
        (torch.cuda, "is_available", lambda: True),
        (torch.cuda, "device_count", lambda: 1),
        (torch.cuda, "current_device", lambda: 0),
        (torch.cuda, "get_device_properties", lambda *_: card),
        (torch.cuda, "get_device_capability", lambda *_: (9, 0)),
        (torch.cuda, "get_rng_state", lambda *_: state),
        (torch.cuda, "set_rng_state", lambda *_: None),
        (torch.cuda, "_lazy_init", lambda: None),
        (torch.cuda, "_exchange_device", lambda _: 0),
        (torch.cuda, "_maybe_exchange_device", lambda _: 0),
        (torch.version, "cuda", "12.8"),
        (fake_tensor, "init_gpu_context", lambda *_: None),
        (torch.utils._triton, "triton_hash_with_backend", lambda: "0" * 16),
        (triton.runtime.driver, "_active", driver),
        (DeviceProperties, "create", lambda _: hints),
        (CudaInterface, "get_device_properties", lambda *_: card),
        (CudaInterface.Worker, "get_device_properties", lambda *_: card),
        (pad_mm, "should_pad", lambda *_, **__: False),  # it would time products on the card
        (joint_graph, "lazy_init", lambda *_: None),
        (joint_graph, "UniformValueConstantFolder", _FolderOnCpu),
        (post_grad, "lazy_init", lambda *_: None),
    )


def _entry(problem: str, held: list[str], num_outputs: int, *, is_tuple: bool) -> str:
    """The problem's definitions, with the class renamed to ModelNew and its forward replaced."""
    tree = ast.parse(problem)
    skipped = {"get_inputs", "get_init_inputs", "get_input_sets"}
    kept = [one for one in tree.body if getattr(one, "name", "") not in skipped]
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id == "Model":
            node.id = "ModelNew"
        if isinstance(node, ast.ClassDef) and node.name == "Model":
            node.name = "ModelNew"
            node.body = [_forward(one, held, num_outputs, is_tuple) for one in node.body]
    return ast.unparse(ast.Module(body=kept, type_ignores=[]))


def _forward(node: ast.stmt, held: list[str], num_outputs: int, is_tuple: bool) -> ast.stmt:
    if not isinstance(node, ast.FunctionDef) or node.name != "forward":
        return node
    _, *inputs = (one.arg for one in node.args.args)
    parts = [f"output[{place}]" for place in range(num_outputs)]
    result = f"({', '.join(parts)},)" if is_tuple else parts[0]
    text = f"output = call([{', '.join([*held, *inputs])}])\nreturn {result}"
    made = copy.copy(node)
    made.body = ast.parse(text).body
    return made


def _attribute(name: str) -> str:
    """`self.layers[0].weight` for `layers.0.weight`."""
    parts = name.split(".")
    return "self" + "".join(f"[{one}]" if one.isdecimal() else f".{one}" for one in parts)
