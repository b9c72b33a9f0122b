"""Cards for a command: which ones, claimed, and only then weighed. Called by `run` and `serving`.

    lay out as if the cards were empty ──▶ claim (or wait for it) ──▶ lay out beside who is there

Who else is on a card is asked under the claim: before it, a run that is about to end would get a
second one refused, or bounded for good by memory that is free when its turn comes.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol, TypeVar

from forge.process.gpu_claim import Claim, claim
from forge.runner.plan.gpu_fit import CardBusy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from forge.process.devices import Gpu
    from forge.runner.plan.machine import Machine

LEFTOVERS_S, LOOK_AGAIN_S = 10.0, 2.0
"""A killed process is gone from its card within seconds."""


class HasCards(Protocol):
    """A plan or a placement."""

    @property
    def gpus(self) -> tuple[Gpu, ...]: ...


T = TypeVar("T", bound=HasCards)


@contextmanager
def open_claimed(
    lay_out: Callable[[Machine], T],
    *,
    look: Callable[[], Machine],
    run: str,
    wait_s: float,
    say: Callable[[str], None],
) -> Iterator[tuple[T, Claim]]:
    """What `lay_out` made of this machine, and the claim on its cards. Blocks.

    Args:
        look: asks the machine anew.
        wait_s: for cards of another run.

    Raises:
        CardBusy: processes that claim nothing leave too little of a card.
        MachineError: a card is another run's, with its name; or what `lay_out` raises.
    """
    machine = look()
    made = lay_out(replace(machine, gpu_users={}))
    with claim(made.gpus, run=run, wait_s=wait_s, say=say) as cards:
        if made.gpus:
            # The same order of cards, or others than the claimed ones would be laid out.
            made = _weighed(lay_out, lambda: replace(look(), busy=machine.busy), say)
        yield made, cards


def _weighed(
    lay_out: Callable[[Machine], T], look: Callable[[], Machine], say: Callable[[str], None]
) -> T:
    """What a run that was just killed leaves on a card is waited for."""
    deadline, is_told = time.monotonic() + LEFTOVERS_S, False
    while True:
        try:
            return lay_out(look())
        except CardBusy as error:
            if time.monotonic() >= deadline:
                raise
            if not is_told:
                say(f"{error}; looking again for {LEFTOVERS_S:.0f} s")
                is_told = True
            time.sleep(LOOK_AGAIN_S)
