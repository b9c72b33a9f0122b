"""Training, on the host's side. `trainer/` has the child processes."""

from __future__ import annotations
