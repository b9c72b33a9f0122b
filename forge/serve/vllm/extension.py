"""Methods that run inside vLLM's worker processes: loading a published checkpoint, taking turns on
a shared GPU, ending with the parent process.

vLLM adds them to its worker class (`worker_extension_cls`); `self` is vLLM's GPU worker. Promises:
CUDA graphs and compiled code stay valid, since weights are written in place; on a shared GPU no
step overlaps a judge's timing.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch

from forge.process.gpu_locks import card_turns
from forge.process.lease import die_with_parent
from forge.process.shared_weights import collect_shared, open_shared, shared_gpu

MOVES = ("add_lora", "sleep", "wake_up")
"""Methods of vLLM's worker that copy to or from the GPU between two steps."""


class ForgeWorker:
    """Methods that vLLM adds to its worker. All begin with forge_, so that none replaces vLLM's."""

    model_runner: Any
    """vLLM's attribute."""
    execute_model: Callable[[Any], Any]
    """vLLM's method: one forward pass. If it returns None, vLLM calls `sample_tokens` next for the
    result."""
    sample_tokens: Callable[[Any], Any]
    """vLLM's method."""
    forge_turns: Callable[[], AbstractContextManager[None]] = nullcontext
    forge_gpus: frozenset[str] = frozenset()
    """UUIDs of the GPUs that take turns."""

    def forge_start(self, shared_gpus: Sequence[str]) -> None:
        """Call it once, before the first request."""
        die_with_parent(os.getppid())
        self.forge_gpus = frozenset(shared_gpus)
        if shared_gpus:
            self.forge_turns = card_turns(shared_gpus)
            self.execute_model, self.sample_tokens = in_turns(
                self.execute_model,
                self.sample_tokens,
                turns=self.forge_turns,
                drain=torch.cuda.synchronize,
            )
            for name in MOVES:
                moved = in_turn(
                    getattr(self, name), turns=self.forge_turns, drain=torch.cuda.synchronize
                )
                setattr(self, name, moved)  # vLLM reads it from the worker at each call

    def forge_reload(self, path: str) -> None:
        """Write a checkpoint's weights over the served ones."""
        with self.forge_turns(), bare_layers(self.model_runner.get_model()):
            self.model_runner.reload_weights(weights_path=path)
            torch.cuda.synchronize()

    def forge_copy(self, path: str) -> None:
        """Copy the weights over that the trainer has in its GPU's memory, in a turn on both."""
        turns = card_turns([*{*self.forge_gpus, shared_gpu(Path(path))}])
        with turns(), bare_layers(self.model_runner.get_model()):
            self.model_runner.reload_weights(weights_iterator=open_shared(Path(path)))
            torch.cuda.synchronize()
        gc.collect()  # the last references to the trainer's memory
        collect_shared()


def in_turn(
    function: Callable[..., Any],
    *,
    turns: Callable[[], AbstractContextManager[None]],
    drain: Callable[[], None],
) -> Callable[..., Any]:
    """Wrap the function into one turn, which ends when its work on the GPU is done."""

    def held(*args: Any, **kwargs: Any) -> Any:
        with turns():
            try:
                return function(*args, **kwargs)
            finally:
                drain()

    return held


def in_turns(
    execute: Callable[[Any], Any],
    sample: Callable[[Any], Any],
    *,
    turns: Callable[[], AbstractContextManager[None]],
    drain: Callable[[], None],
) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    """Wrap the two halves of a step into one turn, which begins with the first and ends when the
    work of both on the GPU is done."""
    held = ExitStack()

    def leave() -> None:
        try:
            drain()
        finally:
            held.close()

    def executed(scheduled: Any) -> Any:
        held.enter_context(turns())
        try:
            out = execute(scheduled)
        except BaseException:
            held.close()
            raise
        if out is not None:
            leave()
        return out

    def sampled(grammar: Any) -> Any:
        try:
            return sample(grammar)
        finally:
            leave()

    return executed, sampled


@contextmanager
def bare_layers(model: torch.nn.Module) -> Iterator[None]:
    """Remove the wrappers for adapters inside the context, so that a checkpoint's names fit."""
    wrapped = [
        (name, module)
        for name, module in model.named_modules()
        if _is_wrapper(module) and ".base_layer." not in name
    ]
    try:
        for name, module in wrapped:
            _put(model, name, module.get_submodule("base_layer"))
        yield
    finally:
        for name, module in wrapped:
            _put(model, name, module)


def _is_wrapper(module: torch.nn.Module) -> bool:
    """True for vLLM's BaseLayerWithLoRA, without importing it."""
    return any(kind.__name__ == "BaseLayerWithLoRA" for kind in type(module).__mro__)


def _put(model: torch.nn.Module, name: str, module: torch.nn.Module) -> None:
    parent, _, attribute = name.rpartition(".")
    setattr(model.get_submodule(parent), attribute, module)
