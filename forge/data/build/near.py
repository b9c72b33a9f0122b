"""Near-duplicates: MinHash signatures of code, from its normalised syntax tree, and similar
signatures found by locality-sensitive hashing in bands, without comparing all pairs.

Two signatures agree in about as many places as the codes share pieces of syntax (Jaccard). A piece
is `LENGTH` consecutive nodes. Before that, names that the code defines itself, numbers and texts
become equal, and comments, docstrings, imports and the functions that make inputs are left out. The
operations of a module (`torch.relu`, `+`) count several times, since modules of the same form
differ in little else. Text that is no Python is compared by its words.

Ours instead of `datasketch`: its package imports scipy (143 MB, for an integral that fixed bands do
not need) and takes 0.8 s in every process; a signature takes it 2.0 ms, this 0.7 ms, with the same
mean error of 0.03. Broder, "On the resemblance and containment of documents",
1997: P[the minima of a permutation agree] = |A and B| / |A or B|.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Any

import numpy as np
import xxhash

PERMUTATIONS = 128
"""Places of a signature: the standard error of a similarity of 0.8 is 0.035."""
LENGTH = 5
"""Nodes of a piece."""
WEIGHT = 8
"""Times that an operation counts beside the pieces that contain it."""
MAX_PIECES = 20_000
"""Pieces that a signature is made of; an answer within 8192 tokens has about 5,000."""
FRAME = frozenset({"get_inputs", "get_init_inputs", "get_input_sets"})
"""Functions of problem files that do not count: with them, small modules would all be similar."""
COMMON = frozenset({"nn", "Module", "functional", "forward"})
"""Attributes that are no operations."""
_SEED = 20_261_125
_WORD = re.compile(r"\w+|[^\w\s]")
_rng = np.random.default_rng(_SEED)
_FACTORS = _rng.integers(0, 1 << 63, PERMUTATIONS, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
_PLACES = _rng.integers(0, 1 << 63, LENGTH, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
OWN = "_"
"""Every name that the code defines itself."""


def signature(code: str, tree: ast.Module | None) -> np.ndarray:
    """The signature of a code with its syntax tree, None if it is no Python. [PERMUTATIONS]"""
    if tree is None:
        return _minima(_WORD.findall(code[: MAX_PIECES * 8])[:MAX_PIECES], [])
    tokens, operations = _flatten(tree)
    return _minima(tokens, sorted(operations))


def similarity(one: np.ndarray, others: np.ndarray) -> np.ndarray:
    """The share of equal places with each of the others. [N]"""
    return (others == one).mean(axis=-1)


def _flatten(tree: ast.Module) -> tuple[list[str], set[str]]:
    """Kinds of nodes and names in the order of the source, and the names of operations.

    The inner loop of a build: a row's answer has thousands of nodes.
    """
    tokens: list[str] = []
    own: set[str] = set()
    operations: set[str] = set()
    stack: list[Any] = [tree]
    add, pop, push = tokens.append, stack.pop, stack.append
    while stack and len(tokens) < MAX_PIECES:
        node = pop()
        kind = node.__class__
        if kind is ast.Name:
            add(node.id)
            if node.ctx.__class__ is ast.Store:
                own.add(node.id)
        elif kind is ast.Constant:
            add(node.value.__class__.__name__)
        elif kind is ast.Attribute:
            add(node.attr)
            (operations if node.ctx.__class__ is ast.Load else own).add(node.attr)
            push(node.value)
        elif isinstance(node, ast.AST) and not _is_frame(node):
            add(kind.__name__)
            if kind in _LABELS:
                label: str = getattr(node, _LABELS[kind]) or ""
                add(label)
                if kind is not ast.keyword:  # which names what others define
                    own.add(label)
            if kind in _OPERATE:
                operations.add(node.op.__class__.__name__)  # type: ignore[attr-defined]
            for name in _children(kind):
                value: Any = getattr(node, name, None)
                if isinstance(value, list):
                    stack += value[::-1]
                elif value is not None:
                    push(value)
    return [OWN if token in own else token for token in tokens], operations - own - COMMON


_LABELS = {
    ast.FunctionDef: "name", ast.ClassDef: "name", ast.AsyncFunctionDef: "name", ast.arg: "arg",
    ast.keyword: "arg",
}  # fmt: skip
_OPERATE = frozenset({ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.AugAssign})
_NO_CHILDREN = frozenset({"ctx", "name", "arg", "asname", "type_comment", "level", "module"})


@cache
def _children(kind: type[ast.AST]) -> tuple[str, ...]:
    """Fields of a kind of node with nodes, the last one first, as a stack takes them."""
    return tuple(name for name in reversed(kind._fields) if name not in _NO_CHILDREN)


def _is_frame(node: ast.AST) -> bool:
    """True for docstrings, imports, and functions that every problem file has."""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    if isinstance(node, ast.FunctionDef):
        return node.name in FRAME
    return isinstance(node, ast.Import | ast.ImportFrom)


def _minima(tokens: Sequence[str], operations: Sequence[str]) -> np.ndarray:
    hashes = np.fromiter(map(_hash, tokens), dtype=np.uint64, count=len(tokens))
    pieces = np.zeros(max(len(hashes) - LENGTH + 1, 1), dtype=np.uint64)
    for place, factor in enumerate(_PLACES):
        part = hashes[place : place + len(pieces)]
        pieces[: len(part)] += part * factor
    repeated = [_hash(f"{name}/{time}") for name in operations for time in range(WEIGHT)]
    pieces = np.unique(np.concatenate([pieces, np.array(repeated, dtype=np.uint64)]))
    pieces ^= pieces >> np.uint64(29)
    minima = np.empty(PERMUTATIONS, dtype=np.uint64)
    values = np.empty_like(pieces)
    for index, factor in enumerate(_FACTORS):  # one at a time stays in the cache
        np.multiply(pieces, factor, out=values)
        minima[index] = values.min()
    return (minima >> np.uint64(32)).astype(np.uint32)


@lru_cache(maxsize=1 << 16)
def _hash(token: str) -> int:
    return xxhash.xxh3_64_intdigest(token.encode("utf-8", "surrogatepass"))


ROWS = 6
"""Places of a band."""
BANDS = PERMUTATIONS // ROWS
MAX_BUCKET = 256
"""Entries of a bucket that are compared: a form that thousands of modules share would make the time
quadratic. Later ones are still found through other bands."""


class SignatureIndex:
    """Signatures in the order in which they were added."""

    def __init__(self, threshold: float) -> None:
        self._threshold = threshold
        self._buckets: dict[tuple[int, bytes], list[int]] = {}
        self._signatures = np.empty((1024, PERMUTATIONS), dtype=np.uint32)
        self._size = 0
        self._same: dict[bytes, int] = {}

    def add(self, signature: np.ndarray) -> int:
        """Adds a signature and returns its index; an equal one has it already."""
        key = signature.tobytes()
        found = self._same.setdefault(key, self._size)
        if found < self._size:
            return found
        if self._size == len(self._signatures):
            self._signatures = np.concatenate([self._signatures, np.empty_like(self._signatures)])
        self._signatures[self._size] = signature
        for band in _bands(signature):
            bucket = self._buckets.setdefault(band, [])
            if len(bucket) < MAX_BUCKET:
                bucket.append(self._size)
        self._size += 1
        return found

    def similar(self, signature: np.ndarray) -> list[tuple[int, float]]:
        """Index and similarity of each signature that is similar, in the order of their indices."""
        same = self._same.get(signature.tobytes())
        candidates = set[int]() if same is None else {same}
        for band in _bands(signature):
            candidates.update(self._buckets.get(band, ()))
        if not candidates:
            return []
        indices = np.array(sorted(candidates))
        shares = similarity(signature, self._signatures[indices])
        return [
            (int(index), float(share))
            for index, share in zip(indices, shares, strict=True)
            if share >= self._threshold
        ]


def _bands(signature: np.ndarray) -> list[tuple[int, bytes]]:
    data = signature.tobytes()
    size = ROWS * signature.itemsize
    return [(band, data[band * size : (band + 1) * size]) for band in range(BANDS)]


class Families:
    """Numbers in families: union-find whose representative is the smallest number."""

    def __init__(self) -> None:
        self._parents: dict[int, int] = {}

    def join(self, one: int, other: int) -> None:
        """Makes two numbers, and all of their families, one family."""
        first, second = sorted((self.of(one), self.of(other)))
        self._parents[second] = first

    def of(self, number: int) -> int:
        """The representative of a number's family."""
        while (parent := self._parents.get(number, number)) != number:
            self._parents[number] = self._parents.get(parent, parent)
            number = parent
        return number
