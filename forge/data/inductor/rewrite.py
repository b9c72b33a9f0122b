"""`rewrite`: from the text of an answer to a plain module."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forge.data.inductor.outcome import NotRewritten, Reason

if TYPE_CHECKING:
    from forge.data.inductor.outcome import Rewritten


def rewrite(code: str, *, entry_point: str = "Model") -> Rewritten:
    """The plain module of an answer that Inductor made. Deterministic.

    Args:
        code: The whole answer: kernels, `call`, and the class whose forward calls it.
        entry_point: Name of the reference; the module defines `<entry_point>New`.

    Raises:
        NotRewritten: nothing else, for any text.
    """
    raise NotRewritten(Reason.NO_ENTRY_POINT, f"{entry_point}New in {len(code)} characters")
