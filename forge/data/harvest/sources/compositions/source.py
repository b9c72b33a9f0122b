"""The source `compositions:NUMBER[@SEED]` of a harvest."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from forge.data.harvest.records import Found
from forge.data.harvest.sources.compositions.draw import compose
from forge.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

PART = 100
"""Compositions of a unit: 0.15 s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compositions:
    """The first compositions of a seed. A unit is a range of them."""

    num: int
    seed: int
    name = "compositions"

    def facts(self) -> dict[str, Any]:
        """Seed and number."""
        return {"source": self.name, "num": self.num, "seed": self.seed}

    def units(self) -> Sequence[str]:
        """First numbers of the ranges."""
        return [str(start) for start in range(0, self.num, PART)]

    def read(self, unit: str) -> Iterator[Found]:
        """The compositions of a range."""
        for number in range(int(unit), min(int(unit) + PART, self.num)):
            made = compose(self.seed, number)
            yield Found(
                text=made.text, origin=str(number), name="_".join(made.ops),
                kind=f"compositions level {made.level}", level=made.level,
                others=(made.other,) if made.other else (), large=made.large,
            )  # fmt: skip


def open_compositions(rest: str) -> Compositions:
    """The source that `compositions:REST` names. Raises ConfigError for another form."""
    match = re.fullmatch(r"([1-9]\d*)(?:@(\d+))?", rest)
    if match is None:
        raise ConfigError(
            f"compositions:{rest}: expected compositions:NUMBER or compositions:NUMBER@SEED, "
            "such as compositions:5000@7"
        )
    return Compositions(num=int(match[1]), seed=int(match[2] or 0))
