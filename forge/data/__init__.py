"""Problems, their answers as SFT pairs, and the prompts that show both. Host code: no torch."""

from __future__ import annotations
