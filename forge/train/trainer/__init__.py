"""The trainer children: torch, transformers, TRL and PEFT live here. Started by
`forge.train.handle`."""

from __future__ import annotations
