"""The rewriter of Inductor's answers in this version of forge.

None: the step "rewrite" is absent, and answers stay as their data set has them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from forge.data.build.steps import Rewriter

REWRITER: Rewriter | None = None
