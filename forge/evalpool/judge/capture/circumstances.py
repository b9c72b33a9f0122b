"""Makes other surroundings for a call of forward: modes, the machine, the module, the inputs.

A host that looks at them may launch one program in a judge and another in its user's process. So a
session calls forward as a process that trains has it and as one that serves, too.
"""

from __future__ import annotations

import math
import random
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd.graph import increment_version
from torch.utils._python_dispatch import _disable_current_modes

from forge.evalpool.judge.capture.pretence.streams import CURRENT, Stream
from forge.evalpool.judge.capture.stage import Stage
from forge.evalpool.judge.capture.weights import replaced

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from contextlib import AbstractContextManager

SHIFT_BYTES = 512
"""Bytes of a larger tensor before an input; Triton specialises on whether 16 divides them."""
OTHER = 0x5A0000
"""Address of a stream that is not the default one."""
DECADES_S = 10**9, 2 * 10**9
SECOND = torch.device("cuda", 1)
FILL: Any = torch.utils.deterministic


def called(
    names: Collection[str], call: Callable[[], Any], *, model: Any, dtype: Any, recorder: Any
) -> Any:
    """The result of a call of a model under these circumstances; `dtype` is that of its floats."""

    def within() -> Any:
        with ExitStack() as stack:
            for name in names:
                for one in _contexts(name, model, dtype):
                    stack.enter_context(one)
            return call()

    def elsewhere() -> Any:
        with torch.no_grad(), recorder:
            return within()

    if "another thread" not in names:
        return within()
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(elsewhere).result()


def given_tensor(names: Collection[str], make: Any, shape: Any, dtype: Any, *, fake: Any) -> Any:
    """A tensor without content: with `views` a part of another one that was written to, with
    `gradients` a result that requires one."""
    has_gradient = "gradients" in names and dtype.is_floating_point and dtype.itemsize > 1
    if "views" not in names and not has_gradient:
        return make(shape, dtype)
    size, shift = math.prod(shape), SHIFT_BYTES // dtype.itemsize * ("views" in names)
    with _disable_current_modes(), fake, torch.enable_grad():
        whole = make([size + 2 * shift], dtype)
        if has_gradient:
            whole = whole.mul_(make([], dtype).requires_grad_())
        increment_version(whole)
        return whole[shift : shift + size].view(shape)


@contextmanager
def _switched(read: Callable[[], Any], write: Callable[[Any], Any], value: Any) -> Iterator[None]:
    before = read()
    write(value)
    try:
        yield
    finally:
        write(before)


@contextmanager
def _evaluated(model: torch.nn.Module) -> Iterator[None]:
    """`eval()`; a part that its constructor has put there stays so."""
    before = [(one, one.training) for one in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for one, is_training in before:
            one.training = is_training


@contextmanager
def _frozen(model: torch.nn.Module) -> Iterator[None]:
    """No parameter requires a gradient. Integers never do."""
    trained = [one for one in model.parameters() if one.requires_grad]
    for one in trained:
        one.requires_grad_(False)
    try:
        yield
    finally:
        for one in trained:
            one.requires_grad_(True)


def _contexts(name: str, model: Any, dtype: Any) -> Iterator[AbstractContextManager[Any]]:
    """Makes one of the circumstances. Those that change how torch computes are as a host sees
    them alone."""
    match name:
        case "a later time":
            clock = Stage.get().clock
            clock.latest_s += random.SystemRandom().randint(*DECADES_S)
            yield replaced(clock, "ahead_s", clock.latest_s)
        case "a second card":
            yield from _on_the_second_card()
        case "another stream":
            for part in ("cuda_stream", "stream_id"):
                yield replaced(CURRENT, part, OTHER)
            yield replaced(torch.cuda, "default_stream", lambda device=None: object.__new__(Stream))
        case "autocast":
            for owner in (torch, torch._C):
                yield replaced(owner, "is_autocast_enabled", lambda *given: True)
            read, write = torch.get_autocast_dtype, torch.set_autocast_dtype
            yield _switched(partial(read, "cuda"), partial(write, "cuda"), dtype)
        case "deterministic algorithms":
            write = partial(torch.use_deterministic_algorithms, warn_only=True)
            yield _switched(torch.are_deterministic_algorithms_enabled, write, True)
            write = partial(setattr, FILL, "fill_uninitialized_memory")
            yield _switched(lambda: FILL.fill_uninitialized_memory, write, False)
        case "eval()" if isinstance(model, torch.nn.Module):
            yield _evaluated(model)
        case "frozen parameters" if isinstance(model, torch.nn.Module):
            yield _frozen(model)
        case "gradients":
            yield torch.enable_grad()
        case "graph capture":
            yield replaced(torch.cuda, "is_current_stream_capturing", lambda: True)
        case "inference mode":
            yield torch.inference_mode()
        case _:
            pass


def _on_the_second_card() -> Iterator[AbstractContextManager[Any]]:
    """Two cards, of which all tensors are on the second: a program knows the first alone."""
    move, place = torch.Tensor.to, torch._C.TensorBase.device

    def device(tensor: FakeTensor) -> torch.device:
        return torch.device("meta") if tensor.fake_mode.in_kernel_invocation else SECOND

    def to(tensor: Any, *given: Any, **named: Any) -> Any:
        own: Any = place.__get__(tensor)  # what was made on either card is moved to neither
        stay = partial(map, lambda one: own if one == SECOND else one)
        return move(tensor, *stay(given), **dict(zip(named, stay(named.values()), strict=True)))

    yield replaced(torch.cuda, "device_count", lambda: 2)
    yield replaced(torch.cuda, "current_device", lambda: 1)
    yield replaced(torch._C, "_cuda_getDevice", lambda: 1)
    yield replaced(FakeTensor, "device", property(device))
    yield replaced(FakeTensor, "get_device", lambda tensor: 1)
    yield replaced(FakeTensor, "to", to)
