"""The part of a tensor that a mask covers has its indices and a name."""

from typing import Any

import numpy as np
import pytest

from forge.evalpool.judge.channel.regions import region_of

S = np.s_


@pytest.mark.parametrize(
    ("shape", "parts", "place", "words"),
    [
        ((40, 40), [S[:, 39]], "[:, 39]", "the last column"),
        ((40, 40), [S[38:]], "[38:, :]", "the last 2 rows"),
        ((40, 40), [S[0]], "[0, :]", "the first row"),
        ((3000,), [S[2816:]], "[2816:]", "the last 184 elements"),
        ((8, 64), [S[:, 1::4]], "[:, 1::4]", "one of 4 columns"),
        ((4, 5, 6), [S[:, 4]], "[:, 4, :]", "the last index of dimension 1"),
        ((64, 64), [S[16:32], S[48:]], "", "blocks of 16 rows alternate, the second of each two"),
        ((5, 7), [S[3, 2:], S[4]], "", "the last 12 elements in memory, from number 23 on"),
        ((40, 40), [S[20:24, 3:9]], "[20:24, 3:9]", ""),
    ],
)
def test_a_part_has_its_indices_and_a_name(
    shape: tuple[int, ...], parts: list[Any], place: str, words: str
) -> None:
    mask = np.zeros(shape, np.bool_)
    for part in parts:
        mask[part] = True
    found = region_of(mask)
    assert (found.place, found.words) == (place, words)


def test_all_of_a_tensor_one_element_and_scattered_ones_are_no_part() -> None:
    mask = np.zeros((40, 40), np.bool_)
    assert region_of(~mask) is None
    mask[3, 5] = True
    assert region_of(mask) is None
    assert region_of(np.random.default_rng(0).random((40, 40)) < 0.3) is None
