"""Training, on the host's side: starting trainers, sample files, refusals. `trainer/` has the child
processes."""

from __future__ import annotations
