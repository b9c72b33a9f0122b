# pyright: strict
"""Holds the closed list of what a candidate's host code may name; `host_code.py` reads it.

A name is here if what it gives is decided by its arguments: by shapes, types and strides of
tensors, by parameters, by the card. Not here, and never to be added: what tells of the process
(time, threads, memory, environment, switches, hooks, counters, addresses), what loads, saves,
registers or seeds, and what hands out the inside of a function, a class or a module.
"""

from __future__ import annotations

import re
from pathlib import Path

from forge.evalpool.judge.program.ops import KINDS


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


def _lists() -> dict[str, frozenset[str]]:
    text = Path(__file__).with_suffix(".txt").read_text(encoding="utf-8")
    parts = (part.partition("]") for part in text.split("[")[1:])
    return {name: _words(names) for name, _, names in parts}


LISTS = _lists()
"""Longer lists, by the names that they have here (`host_names.txt`)."""


TORCH_TYPE = re.compile(
    r"torch\.(b?float|u?int|complex)\d*\w*|torch\.(half|double|long|short|bool)"
)
"""A type of torch's: all that a kernel's body may name of it."""
VIEWS = LISTS["VIEWS"]
"""Functions and attributes whose result may lie in the same memory."""
COMPUTED = (
    {name for one in KINDS if not (name := one.removeprefix("aten.")).startswith("_")}
    | VIEWS
    | LISTS["COMPUTED"]
)
"""Operations that a program may have, and functions that are made of some."""
FACTORIES = LISTS["FACTORIES"]
"""Functions that make a tensor; its type and place are the process's where they name none."""
KINDS_ASKED = _words("dtype element_size itemsize nbytes is_cuda device type")
"""Attributes of tensors that tell their type or place."""
SIZES = _words("shape size numel nelement dim ndim ndimension len")
"""Attributes of tensors that tell neither."""
CASTS = _words("to type type_as float double half bfloat16 int long short bool")
"""Methods of tensors that choose the type of what they give."""
WHOLE = LISTS["WHOLE"]
"""Functions whose results are whole numbers if their arguments are."""
READS = _words("float int bool complex min max sorted item tolist")
"""Functions and methods that make a number of a tensor, or choose by it."""
OF_TENSORS = COMPUTED | _words("shape dtype device ndim is_cuda layout itemsize nbytes")
"""Attributes of tensors that tell what they are."""
TORCH = LISTS["TORCH"]
"""Names of torch beside those of operations and layers; the last are those of Inductor's output."""
FUNCTIONAL = LISTS["FUNCTIONAL"]
"""Functions of `torch.nn.functional` beside those of operations."""
NO_LAYERS = _words("DataParallel SyncBatchNorm Container")
TRITON = LISTS["TRITON"]
"""Names of Triton beside its language's."""
OF_CARD = LISTS["OF_CARD"]
"""Names of torch and Triton that tell of the card."""
CARD = LISTS["CARD"]
"""Fields of what these give that are alike on each card of a kind."""
INNER = _words("core standard semantic random extra math target_info libdevice")
"""Modules in that of Triton's language: of its other names Triton says which there are."""
LIBRARIES = LISTS["LIBRARIES"]
"""Modules of which every public name is allowed."""
OTHERS = LISTS["OTHERS"]
"""Names of other modules."""
PLAIN_MODULES = _words("torch triton math typing __future__ dataclasses functools")
"""Packages whose import a shared child has done, or does at no cost."""
ALONE = LISTS["ALONE"]
"""Parts of names that a process may notice: such a candidate has a capture child of its own."""
SWITCHES = LISTS["SWITCHES"]
"""Switches that a host may set, and not read: the executor has its own."""

BUILTINS = LISTS["BUILTINS"]
TITLES = _words("__all__ __version__ __author__")
"""Hidden names that a module may set: it cannot read them."""
RESERVED = _words("getattr hasattr setattr range enumerate super self cls")
"""Names that no function, class or argument may have, but `self` and `cls` of a method."""
ITERATORS = _words("zip enumerate reversed map filter product repeat chain accumulate pairwise")
"""Functions whose result is another one each time that it is read."""
CONSUMERS = ITERATORS | LISTS["CONSUMERS"]
"""Functions that read an iterator at once."""
CHANGING = LISTS["CHANGING"]
"""Methods that change a list, a set or a dict."""
BUILDING = LISTS["BUILDING"]
"""Methods of modules that change them: for constructors alone."""
ASKED = _words("is_contiguous data_ptr storage_offset needs_input_grad requires_grad")
"""Attributes of tensors that tell of the caller."""
CLASSES = LISTS["CLASSES"]
"""Classes that `isinstance` may ask for, beside layers and own ones."""
NO_CLASSES = _words("Parameter Buffer Module FakeTensor")
METHODS = BUILDING | LISTS["METHODS"]
"""Methods of torch's modules that others call: a class may not define them anew."""
DUNDERS = _words("__init__ __post_init__ __call__ __len__ __repr__")
"""Methods with such names that a class may define."""
OF_MODULES = LISTS["OF_MODULES"]
"""Hidden attributes that torch, and what wraps a module, give it."""
TELLING = LISTS["TELLING"]
"""Attributes of tensors, modules, functions and kernels that tell more than what they compute.
`tests/evalpool/trial/test_host_code.py` says that all others are known. A class may have one of
such a name: it is read from `self` alone."""
