"""The file of a stage's probe tokens."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b'{"prompt": [1]}', b"\xff\x00"])
def test_a_damaged_file_of_tokens_is_replaced_by_new_ones(tmp_path: Path, content: bytes) -> None:
    from forge.train.trainer.publish.probes import Prober, read_tokens

    path = tmp_path / "probe.json"
    path.write_bytes(content)
    assert Prober(path, read_tokens(path)).take(model=None) is None
