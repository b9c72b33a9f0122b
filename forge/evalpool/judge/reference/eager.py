"""References run eagerly, also where their source names `torch.compile`.

Called by oracles and examiners before a reference is run: expected results are eager's, and their
sandbox has no compiler. A baseline is timed as the source says.
"""

from __future__ import annotations

import torch


def run_eagerly(source: str) -> None:
    """Makes `torch.compile` in a source do nothing. Torch's compiler takes a second to import, so
    other sources are left alone."""
    if "compile" in source:
        torch.compiler.set_stance("force_eager")
