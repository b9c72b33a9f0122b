"""The model learning: the handle that the runner holds, sample files, and `trainer/`, the child
processes."""

from __future__ import annotations
