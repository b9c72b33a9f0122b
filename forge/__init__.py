"""forge: one command that turns a language model into one that writes fast, correct Triton kernels.

From Python: `forge.open("quickstart-1").rollouts(status="correct")` reads a run, and
`forge.solve("def f(x): return torch.relu(x)")` asks the latest run's model for a kernel; in
Jupyter, `await forge.asolve(...)`.

`forge.install` loads this file under an old Python too.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from forge.commands.solve import asolve, solve
    from forge.views.api import open_run as open

__version__ = "0.1.0"

__all__ = ["asolve", "open", "solve"]


def __getattr__(name: str) -> Any:
    """Public names are imported when first used, so that `import forge` costs nothing."""
    if name == "open":
        from forge.views.api import open_run

        return open_run
    if name in ("asolve", "solve"):
        from forge.commands import solve

        return getattr(solve, name)
    raise AttributeError(f"module 'forge' has no attribute {name!r}")
