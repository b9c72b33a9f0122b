"""Single operations, the form of KernelBench's level 1.

Their inputs are `name:sizes`, sizes being letters of `values.KINDS`; one letter is one size in a
problem. After the sizes stands what the tensor holds, as for `ModuleWriter.input`: `?` a mask, `+`
positive, `1` between 0 and 1, `=` probabilities, `-` signs, `<V` indices below V.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

from forge.data.harvest.sources.compositions.vocabulary import section
from forge.data.harvest.sources.compositions.writer import count, number

if TYPE_CHECKING:
    from forge.data.harvest.sources.compositions.values import Dim, Value
    from forge.data.harvest.sources.compositions.writer import Given, ModuleWriter

OFTEN = frozenset({
    *("argmax_rows", "prod_rows", "cumsum_rows", "cumprod_decay", "triangles", "masked_product"),
    *("attention", "causal_attention", "pixel_shuffle", "max_with_index", "cumsum_reverse"),
    *("cumsum_exclusive", "cumsum_masked", "hinge", "mse_parts", "kl_rows", "triplet"),
    *("cosine_loss", "frobenius_norm", "rms_norm_channels", "min_over", "smooth_l1", "nll"),
    *("huber_rows", "label_smoothing", "batched_vector", "l1_loss", "layer_norm_channels"),
    *("addmm", "baddbmm", "bilinear", "outer", "any_or_all", "count_nonzero"),
})  # fmt: skip
"""Operations that are asked for most, or have few others of their kind in the vocabulary."""
_LETTERS = re.compile(r"[A-Z]8?|\d+")
_OTHER_NAMES = {
    "x": ("x", "x", "x", "input", "inputs", "inp", "t", "data", "tensor", "X"),
    "y": ("y", "other", "z", "Y", "rhs"), "a": ("a", "A", "lhs", "mat1"),
    "b": ("b", "B", "rhs", "mat2"), "mask": ("mask", "valid", "keep"),
    "pred": ("predictions", "predictions", "pred", "output", "y_pred"),
    "target": ("targets", "targets", "target", "y_true"),
    "logits": ("logits", "scores", "logits", "outputs"),
    "labels": ("labels", "targets", "target", "y"), "q": ("q", "query", "Q"),
    "k": ("k", "key", "K"), "v": ("v", "value", "V"), "img": ("img", "image", "x", "frames"),
    "ids": ("ids", "input_ids", "tokens", "indices", "idx"), "index": ("index", "indices", "idx"),
}  # fmt: skip
"""Names that people give to an input of the vocabulary."""


def single(w: ModuleWriter) -> Value:
    """One of the operations on inputs of its own."""
    table = section("singles")
    name = w.rng.choices(list(table), weights=[10 if one in OFTEN else 1 for one in table])[0]
    one = table[name]
    declared = [each.partition(":") for each in one.inputs.split()]
    letters = re.findall(r"[A-Z]8?", " ".join(text for _, _, text in declared))
    letters += re.findall(r"\$([A-Z]8?)\b", " ".join(one.forms))
    dims: dict[str, Dim] = {letter: w.size(letter) for letter in dict.fromkeys(letters)}
    given: dict[str, Given] = {**dims}
    values: list[Value] = []
    for each, _, text in declared:
        match = re.fullmatch(r"([A-Z0-9,]*?)(\?|\+|=|-|<[A-Z]|1)?", text)
        assert match is not None
        sizes = [dims.get(size) or number(size) for size in match[1].split(",")]
        kind = match[2] or ""
        value = w.input(
            sizes, kind=kind[:1], below=dims[kind[1:]] if kind[1:] else None,
            name=w.rng.choice(_OTHER_NAMES.get(each, (each,))),
        )  # fmt: skip
        given[each] = value
        values.append(value)
    if one.work:
        w.flops += 2.0 * count([dims[letter] for letter in _LETTERS.findall(one.work)])
    if one.room:
        sizes = [dims.get(part) or number(part) for part in _LETTERS.findall(one.room)]
        room = math.prod(size.size for size in sizes)
        w.largest, w.num_bytes = max(w.largest, room), w.num_bytes + 4 * room
    w.ops.append(name)
    w.phrases.append(name.replace("_", " "))
    text = w.write(one, name if len(name) < 14 else "", **given)
    return w.let(values[0], text)
