"""Problems, their answers as SFT pairs, and the prompts that both are shown in. Host code: no torch."""

from __future__ import annotations
