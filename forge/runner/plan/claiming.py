"""Claims the cards of a command before their free memory is checked.

    lay out as if cards were empty ──▶ claim (or wait) ──▶ lay out beside the cards' other users

Called by `run` and by commands that open engines. The other users of a card are read under the
claim. Read before it, a run that is about to end would cause the next run to be refused, or limited
for good by memory that is free when its turn comes.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol, TypeVar

from forge.process.gpu_locks import Claim, claim
from forge.runner.plan.fit import CardBusy

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from forge.process.devices import Gpu
    from forge.runner.plan.machine import Machine

LEFTOVERS_S, LOOK_AGAIN_S = 10.0, 2.0
"""A killed process leaves its card within seconds."""


class HasCards(Protocol):
    """A plan or a placement."""

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """The GPUs that are claimed."""
        ...


T = TypeVar("T", bound=HasCards)


@contextmanager
def open_claimed(
    lay_out: Callable[[Machine], T],
    *,
    look: Callable[[], Machine],
    run: str,
    wait_s: float,
    say: Callable[[str], None],
) -> Generator[tuple[T, Claim]]:
    """Yields the result of `lay_out` for this machine, and the claim on its cards. Blocks.

    Args:
        look: reads the machine again.
        wait_s: maximum wait for cards of another run.

    Raises:
        CardBusy: processes without a claim leave too little memory on a card.
        MachineError: another run has claimed a card; or an error of `lay_out`.
    """
    machine = look()
    made = lay_out(replace(machine, gpu_users={}))
    with claim(made.gpus, run=run, wait_s=wait_s, say=say) as cards:
        if made.gpus:
            # `busy` stays: another order of cards would lay out other cards than the claimed ones.
            made = _fitted(lay_out, lambda: replace(look(), busy=machine.busy), say)
        yield made, cards


def _fitted(
    lay_out: Callable[[Machine], T], look: Callable[[], Machine], say: Callable[[str], None]
) -> T:
    """Lays out beside the cards' other users. Waits for processes of a run that was just killed."""
    deadline, has_said = time.monotonic() + LEFTOVERS_S, False
    while True:
        try:
            return lay_out(look())
        except CardBusy as error:
            if time.monotonic() >= deadline:
                raise
            if not has_said:
                say(f"{error}; trying again for {LEFTOVERS_S:.0f} s")
                has_said = True
            time.sleep(LOOK_AGAIN_S)
