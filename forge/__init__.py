"""forge trains a language model to write fast, correct Triton kernels.

In Python, `forge.open("quickstart-1").rollouts(status="correct")` reads a run, and
`forge.solve("def f(x): return torch.relu(x)")` asks the latest run's model for a kernel. In Jupyter
use `await forge.asolve(...)`.

This file must load under an old Python, since `forge.install` does.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from forge.commands.chat import asolve, solve
    from forge.views.api import open_run as open

__version__ = "0.1.0"

__all__ = ["asolve", "open", "solve"]


def __getattr__(name: str) -> Any:
    """Imports a public name at its first use, so that `import forge` is fast."""
    if name == "open":
        from forge.views.api import open_run

        return open_run
    if name in ("asolve", "solve"):
        from forge.commands import chat

        return getattr(chat, name)
    raise AttributeError(f"module 'forge' has no attribute {name!r}")
