"""forge trains a language model to write fast, correct Triton kernels.

`forge.judge(problem, answer)` judges a kernel; `with forge.judges() as pool:` keeps judges ready.
`forge.open("quickstart-1").rollouts(status="correct")` reads a run.

This file must load under an old Python, since `forge.install` does.
"""

from typing import TYPE_CHECKING, Any

from forge.version import __version__ as __version__

if TYPE_CHECKING:
    from forge import client as client
    from forge.adapters.calls import ajudge, judge, judges, reward
    from forge.adapters.pools import JudgePool
    from forge.adapters.verdict import Reward, Verdict
    from forge.views.api import open_run as open

__all__ = [
    "JudgePool",
    "Reward",
    "Verdict",
    "ajudge",
    "client",
    "judge",
    "judges",
    "open",
    "reward",
]

_MODULES = {
    **dict.fromkeys(("ajudge", "judge", "judges", "reward"), "forge.adapters.calls"),
    "JudgePool": "forge.adapters.pools",
    **dict.fromkeys(("Reward", "Verdict"), "forge.adapters.verdict"),
}
"""Modules of the public names."""


def __getattr__(name: str) -> Any:
    """Imports a public name at its first use, so that `import forge` is fast."""
    if name == "open":
        from forge.views.api import open_run

        return open_run
    from importlib import import_module

    if name == "client":
        return import_module("forge.client")
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    raise AttributeError(f"module 'forge' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Public names, for completion in a notebook."""
    return sorted(__all__)
