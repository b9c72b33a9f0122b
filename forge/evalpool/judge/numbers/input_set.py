"""One input set of a problem with its results: what `wide/sets.py` makes and an oracle sends."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch


@dataclass(slots=True, kw_only=True)
class InputSet:
    """Inputs of one call and its results."""

    inputs: list[Any]
    outputs: list[torch.Tensor]
    """Outputs of the reference, then the inputs that it changes, as it leaves them."""
    changed: list[int]
    """Positions of those inputs among the tensors of the inputs."""
    form: str
    """As of `Called`."""
    state: dict[str, torch.Tensor] = field(default_factory=dict[str, torch.Tensor])
    """Parameters that the reference changes, as it leaves them."""
    is_open: bool = False
    """True if a rounding decides on integers among `outputs`, as on positions of close values."""
    wide: list[torch.Tensor] | None = None
    """`outputs` in float64 (wide/reference.py); None where the reference has none."""
    wide_state: dict[str, torch.Tensor] = field(default_factory=dict[str, torch.Tensor])
    """`state` in float64."""
    plants: list[tuple[int, int, str]] = field(default_factory=list[tuple[int, int, str]])
    """(tensor, flat index, kind) of some planted elements; tensors as `leaves` numbers them."""
    asks_real: bool = False
    """True if a candidate must answer this set in the problem's own types, too."""
    slack: float = 1.0
    """Tolerances that it is asked with then: more than one where roundings make a quarter."""
    real_error: float = 0.0
    """Distance of `outputs` from `wide`, in tolerances of the problem's types."""

    @property
    def num_returned(self) -> int:
        """Outputs that the call returned; the others are changed inputs."""
        return len(self.outputs) - len(self.changed)

    def changes(self) -> list[tuple[int, torch.Tensor]]:
        """(input, as the reference leaves it) of each input that it changes."""
        return list(zip(self.changed, self.outputs[self.num_returned :], strict=True))

    def num_bytes(self) -> int:
        """Bytes of its inputs and results."""
        tensors = [one for one in self.inputs if isinstance(one, torch.Tensor)]
        return sum(one.nbytes for one in [*tensors, *self.outputs, *(self.wide or ())])
