"""What parameters initialise to while a model is constructed: the reference's values.

A kernel may pack, transpose or fold its weights in `__init__`; loading them later is too late for
that. So while the candidate is constructed, each new `nn.Parameter` takes the values of the
reference's next one of the same shape, in the order in which the reference made its own (the
oracle records it); a buffer takes those of the next with its own name. What would initialise them
(torch.nn.init, the filling methods) leaves them alone.

Used by the runner and the oracle. Imports nothing of forge. Not covered: weights that are no
`nn.Parameter`, values that are computed in place after that (`weight.data.mul_(2)`), and another
order among equal shapes than the reference's: the runner sees it and constructs again without.
"""

from __future__ import annotations

import functools
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import init

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

FILLS = ("uniform_", "normal_", "zero_", "fill_", "random_", "bernoulli_", "exponential_")


class Initial:
    """The reference's values, and who has taken which."""

    def __init__(self, state: dict[str, torch.Tensor], *, order: list[str]) -> None:
        names = dict.fromkeys([*(name for name in order if name in state), *state])
        self._left = {name: state[name] for name in names if state[name].is_floating_point()}
        self._taken: dict[int, tuple[torch.Tensor, str]] = {}
        """By address. The tensor is kept, so that the address stays its own."""

    @property
    def is_exhausted(self) -> bool:
        """Whether every value of the reference was there while the model was constructed."""
        return bool(self._taken) and not self._left

    @property
    def sources(self) -> set[str]:
        """Whose values were taken, by the reference's names."""
        return {name for _, name in self._taken.values()}

    def name_of(self, tensor: torch.Tensor) -> str | None:
        """Whose values a tensor took."""
        kept = self._taken.get(tensor.data_ptr())
        return kept[1] if kept is not None and kept[0].shape == tensor.shape else None

    def names_in(self, model: Any) -> dict[str, str]:
        """Whose values the parameters and buffers of a model took, by their own names."""
        own = model.state_dict() if isinstance(model, torch.nn.Module) else {}
        return {name: found for name, one in own.items() if (found := self.name_of(one))}

    def take(self, tensor: torch.Tensor, *, name: str | None = None) -> None:
        """Gives it the next values of its shape, and of its name where it has one."""
        is_plain = tensor.layout is torch.strided and not tensor.is_meta and tensor.numel()
        if not is_plain or not tensor.is_floating_point():
            return
        for key, value in self._left.items():
            is_named = name is None or key.rpartition(".")[2] == name
            if is_named and value.shape == tensor.shape and 0 not in tensor.stride():
                tensor.data.copy_(value)
                self._taken[tensor.data_ptr()] = (tensor, key)
                del self._left[key]
                return

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Within: models are constructed with the reference's values."""
        register = torch.nn.Module.register_buffer

        def register_buffer(module: Any, name: str, tensor: Any, *args: Any, **kwargs: Any) -> None:
            register(module, name, tensor, *args, **kwargs)
            if tensor is not None:
                self.take(tensor, name=name)

        with ExitStack() as stack:
            stack.enter_context(parameters_made(self.take))
            stack.enter_context(replaced(torch.nn.Module, "register_buffer", register_buffer))
            for owner, name in initialisers():
                kept = unless(self._is_taken, getattr(owner, name))
                stack.enter_context(replaced(owner, name, kept))
            yield

    def _is_taken(self, tensor: torch.Tensor) -> bool:
        return self.name_of(tensor) is not None


class Bare(torch.nn.Module):
    """A function that is a problem's or an answer's entry point: there is nothing to construct."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Any) -> Any:
        return self.function(*inputs)


def construct(entry_point: Any, arguments: list[Any]) -> Any:
    """The model that a class makes, or a function is."""
    return entry_point(*arguments) if isinstance(entry_point, type) else Bare(entry_point)


@contextmanager
def parameters_made(tell: Callable[[torch.Tensor], None]) -> Iterator[None]:
    """Within: `tell` is called with every new nn.Parameter."""
    original = torch.nn.Parameter.__new__

    def make(cls: Any, *args: Any, **kwargs: Any) -> Any:
        parameter = original(cls, *args, **kwargs)
        tell(parameter)
        return parameter

    torch.nn.Parameter.__new__ = staticmethod(make)
    try:
        yield
    finally:
        torch.nn.Parameter.__new__ = staticmethod(original)


def unless(
    is_taken: Callable[[torch.Tensor], bool], fill: Callable[..., Any]
) -> Callable[..., Any]:
    """A function that fills a tensor, for tensors that have not taken values."""

    @functools.wraps(fill)
    def filled(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(tensor, torch.Tensor) and is_taken(tensor):
            return tensor
        return fill(tensor, *args, **kwargs)

    return filled


def initialisers() -> list[tuple[Any, str]]:
    """Owner and name of each function that initialises tensors."""
    functions = [name for name in vars(init) if name.endswith("_") and not name.startswith("_")]
    return [*((init, name) for name in functions), *((torch.Tensor, name) for name in FILLS)]


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Within, an attribute has another value."""
    own = vars(owner).get(name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if own is None:
            delattr(owner, name)
        else:
            setattr(owner, name, own)
