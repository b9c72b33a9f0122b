"""Report of a replayed step: each metric as recorded and as replayed."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from forge.views.text.terminal import printable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import RenderableType

LOSS, GRAD_NORM = "train/loss/mean", "train/grad_norm/value"
SHOWN = (
    LOSS, GRAD_NORM, "train/learning_rate/value", "train/ratio/mean", "train/ratio/max",
    "train/clipped/share", "train/kl_behaviour/mean", "train/kl_reference/mean",
    "train/entropy/mean", "train/tokens/sum", "train/samples/count", "train/micro_batches/count",
)  # fmt: skip
"""Metrics that the batch, the weights and the settings determine; times are left out."""
RELATIVE = 1e-5
"""Largest relative difference of loss and gradient norm that counts as equal: float32 sums in
another order differ by about 1e-6."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayReport:
    """A step, recorded and replayed."""

    run: str
    stage: int
    step: int
    device: str
    num_samples: int
    is_exact: bool
    """True if the batch had the order of the recorded step."""
    overrides: Sequence[str]
    recorded: Mapping[str, float]
    replayed: Mapping[str, float]
    checkpoint: str | None
    """Directory of the checkpoint after the step; None if none was asked for."""

    @property
    def is_same(self) -> bool:
        """True if loss and gradient norm are those of the record."""
        return all(self._is_equal(key) for key in (LOSS, GRAD_NORM))

    def _is_equal(self, key: str) -> bool:
        before, now = self.recorded.get(key), self.replayed.get(key)
        if before is None or now is None:
            return False
        return abs(now - before) <= RELATIVE * max(abs(before), abs(now), 1e-3)

    def to_json(self) -> dict[str, Any]:
        """The output of `--json`."""
        numbers = {
            name: {"recorded": self.recorded.get(key), "replayed": self.replayed.get(key)}
            for name, key in (("loss", LOSS), ("grad_norm", GRAD_NORM))
        }
        return {**asdict(self), **numbers, "is_same": self.is_same}

    def render(self) -> RenderableType:
        """A line with the result, and a table of the metrics."""
        changed = f", with {' '.join(self.overrides)}" if self.overrides else ""
        head = (
            f"{self.run}: step {self.step} of grpo-{self.stage}, {self.num_samples} samples, on "
            f"{self.device}{changed}: loss and gradient norm are "
            f"{'those of the record' if self.is_same else 'different from the record'}"
        )
        parts: list[RenderableType] = [Text(printable(head)), Text(""), self._table()]
        if not self.is_exact:
            words = "the batch file is no longer kept: samples in the order of their ids"
            parts += [Text(""), Text(words, style="yellow")]
        if self.checkpoint is not None:
            parts += [Text(""), Text(printable(f"checkpoint: {self.checkpoint}"))]
        return Group(*parts)

    def _table(self) -> Table:
        table = Table("", "recorded", "replayed", "difference", box=None, pad_edge=False)
        for column in table.columns[1:]:
            column.justify = "right"
        for key in SHOWN:
            before, now = self.recorded.get(key), self.replayed.get(key)
            if before is None and now is None:
                continue
            difference = "" if before is None or now is None else f"{now - before:.3g}"
            table.add_row(key.removeprefix("train/"), _number(before), _number(now), difference)
        return table


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.9g}"
