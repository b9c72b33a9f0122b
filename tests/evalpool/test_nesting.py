"""Places of tensors in what forward returned."""

from __future__ import annotations

from typing import Any

import pytest

from forge.evalpool.judge.channel.nesting import nesting_of


@pytest.mark.parametrize(
    ("result", "nesting"),
    [
        (1, ""),
        (None, ""),
        ((), ""),
        ([1, 2], ""),
        ((1, (2, 3)), "(.(..))"),
        ((1, None), "(.-)"),
        ([None, (1,)], "(-(.))"),
        ({"a": 1, "b": [2]}, "(.(.))"),
    ],
)
def test_a_nesting_says_where_each_tensor_is(result: Any, nesting: str) -> None:
    assert nesting_of(result) == nesting
