"""Rewrites an answer that torch.compile's Inductor made into a plain Triton module. Host code.

`rewrite` reads the text (source.py), turns what surrounds the kernels into steps (call.py,
launches.py), removes what is never read (steps.py), writes the kernels in Triton's own words
(kernel/) and prints the module (module.py, text.py). It parses, and never runs what it reads.
Called when data sets are built; imports no other room of forge.
"""

from forge.data.inductor.outcome import NotRewritten, RewriteReason, Rewritten
from forge.data.inductor.rewrite import rewrite

__all__ = ["NotRewritten", "RewriteReason", "Rewritten", "rewrite"]
