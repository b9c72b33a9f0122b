"""What runs inside vLLM's worker processes: loading a published checkpoint, taking turns on a
shared card, dying with the parent.

Injected by vLLM into its worker class (`worker_extension_cls`), called by `engine` through
`collective_rpc`. `self` is vLLM's GPU worker. Promises: CUDA graphs and compiled code stay valid,
since weights are written where they are; while a card is shared, no step overlaps a judge's timing.
"""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch

from forge.process.lease import die_with_parent
from forge.serve.engine.card import card_turns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


MOVES = ("add_lora", "sleep", "wake_up")
"""Methods of vLLM's worker that copy to or from the card between two steps."""


class ForgeWorker:
    """Methods that vLLM adds to its worker. Names must not meet vLLM's: all begin with forge_."""

    model_runner: Any
    """vLLM's."""
    execute_model: Callable[[Any], Any]
    """vLLM's: one forward pass. None: `sample_tokens` follows at once, and has the result."""
    sample_tokens: Callable[[Any], Any]
    """vLLM's."""
    forge_turns: Callable[[], AbstractContextManager[None]] = nullcontext

    def forge_start(self, shared_gpus: Sequence[str]) -> None:
        """Once, before the first request."""
        die_with_parent(os.getppid())
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
                setattr(self, name, moved)  # vLLM looks for it on the worker at each call

    def forge_reload(self, path: str) -> None:
        """Write a checkpoint's weights over those served."""
        with self.forge_turns(), bare_layers(self.model_runner.get_model()):
            self.model_runner.reload_weights(weights_path=path)
            torch.cuda.synchronize()

    def forge_gpu_bytes(self) -> int:
        """What this rank holds of its card."""
        return torch.cuda.memory_reserved()

    def forge_free_bytes(self) -> int:
        """What nobody holds of its card."""
        return torch.cuda.mem_get_info()[0]


def in_turn(
    function: Callable[..., Any],
    *,
    turns: Callable[[], AbstractContextManager[None]],
    drain: Callable[[], None],
) -> Callable[..., Any]:
    """The function, as one turn that ends when the card has done what it left there."""

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
    """The two halves of a step, inside one turn that begins with the first and ends when the card
    has done what either left on it."""
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
    """The model without the wrappers that adapters sit in: a checkpoint's names then fit."""
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
    """vLLM's BaseLayerWithLoRA, without importing it."""
    return any(kind.__name__ == "BaseLayerWithLoRA" for kind in type(module).__mro__)


def _put(model: torch.nn.Module, name: str, module: torch.nn.Module) -> None:
    parent, _, attribute = name.rpartition(".")
    setattr(model.get_submodule(parent), attribute, module)
