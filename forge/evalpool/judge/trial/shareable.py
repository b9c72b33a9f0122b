# pyright: strict
"""Decides by a candidate's source alone whether its capture may share a child with others.

Called by `captures.py`, which has one child capture such candidates one after the other. Reads a
source and never runs it.

The source is hostile. It is plain if every part of it is in a closed list: kinds of nodes, modules,
their attributes, builtins, attributes of values. Then nothing but torch's and Triton's own objects
of this candidate can be reached and changed. What is not plain is captured in a child of its own,
so a doubt costs time alone.

What the lists rely on, and the checks here keep:

- a module has one name, which nothing else binds, and is used with an allowed attribute only;
- `self` is the first parameter of a method of a class, and only its attributes are assigned to;
- a method is reached through `self` alone, so that `self` is an instance of the candidate's own
  class: none is named as an attribute that any value may have, and no default names one;
- no attribute begins with an underscore, and no name with two, but for `super().__init__()`;
- a text is made for an error alone: that of a tensor shows what surrounds the call;
- Triton reads the same text from the file as `ast` here: ASCII without odd line ends or encoding.

Each entry of a list is harmless whatever it is called with: it computes, describes or records. Not
here, and never to be added: what loads, saves, registers, hooks, seeds, switches, prints or
formats, what returns a module, and what hands out a function's or a class's inside.
"""

from __future__ import annotations

import ast
import builtins
import re
from types import EllipsisType

MAX_BYTES = 32_000
"""Longer sources are not looked at."""
MAX_DEPTH = 60
"""Nesting of a source: Python's own limits are far above."""
IMPORTS = {
    "torch": "torch",
    "torch.nn": "nn",
    "torch.nn.functional": "F",
    "triton": "triton",
    "triton.language": "tl",
    "math": "math",
}
"""Modules that may be imported, with the only other name that each may get."""

BUILTINS = frozenset(
    {
        *("abs", "bool", "float", "int", "isinstance", "len", "list", "max", "min", "range"),
        *("round", "sum", "super", "tuple", "zip", "enumerate", "dict", "reversed", "sorted"),
        *("ValueError", "AssertionError"),
    }
)
"""Builtins that may be used."""

LANGUAGE = frozenset(
    {
        *("abs", "advance", "arange", "argmax", "argmin", "associative_scan", "atomic_add"),
        *("atomic_max", "atomic_min", "bfloat16", "broadcast", "broadcast_to", "cast", "cat"),
        *("cdiv", "ceil", "clamp", "constexpr", "cos", "cumprod", "cumsum", "debug_barrier"),
        *("device_assert", "div_rn", "dot", "erf", "exp", "exp2", "expand_dims", "fdiv", "flip"),
        *("float16", "float32", "float64", "floor", "fma", "full", "int1", "int16", "int32"),
        *("int64", "int8", "join", "load", "log", "log2", "make_block_ptr", "max"),
        *("max_contiguous", "maximum", "min", "minimum", "multiple_of", "num_programs"),
        *("program_id", "ravel", "reduce", "reshape", "rsqrt", "sigmoid", "sin", "softmax"),
        *("sort", "split", "sqrt", "sqrt_rn", "static_assert", "static_range", "store", "sum"),
        *("swizzle2d", "trans", "uint16", "uint32", "uint64", "uint8", "umulhi"),
        *("view", "where", "xor_sum", "zeros", "zeros_like", "range"),
    }
)
"""Names of `triton.language`."""

FUNCTIONS = frozenset(
    {
        *("abs", "add", "addmm", "amax", "amin", "argmax", "argmin", "baddbmm", "bmm", "cat"),
        *("ceil", "celu", "clamp", "cos", "cosine_similarity", "cross_entropy", "cummax"),
        *("cummin", "cumprod", "cumsum", "div", "einsum", "elu", "erf", "exp", "exp2", "expm1"),
        *("flatten", "floor", "fmod", "gather", "gelu", "group_norm", "hardshrink"),
        *("hardsigmoid", "hardswish", "hardtanh", "isfinite", "l1_loss", "layer_norm"),
        *("leaky_relu", "lerp", "linear", "log", "log1p", "log2", "log_softmax", "logsigmoid"),
        *("logsumexp", "matmul", "max", "maximum", "mean", "min", "minimum", "mish", "mm"),
        *("mse_loss", "mul", "mv", "neg", "norm", "normalize", "outer", "pad", "permute", "pow"),
        *("prod", "reciprocal", "relu", "relu6", "remainder", "reshape", "rms_norm", "round"),
        *("rsqrt", "selu", "sigmoid", "sign", "silu", "sin", "smooth_l1_loss", "softmax"),
        *("softmin", "softplus", "softshrink", "softsign", "sqrt", "square", "squeeze", "stack"),
        *("std", "sub", "sum", "tanh", "tanhshrink", "threshold", "transpose", "tril", "triu"),
        *("unsqueeze", "var", "where"),
    }
)
"""Functions of torch that compute: what the judge says to them is not for here."""

PATHS = frozenset(
    {
        *("triton.cdiv", "triton.next_power_of_2"),
        *(f"tl.{name}" for name in LANGUAGE),
        *("torch.empty", "torch.empty_like", "torch.zeros", "torch.zeros_like", "torch.ones"),
        *("torch.ones_like", "torch.full", "torch.full_like", "torch.arange", "torch.Tensor"),
        *("torch.float16", "torch.bfloat16", "torch.float32", "torch.float64", "torch.float"),
        *("torch.half", "torch.int8", "torch.int16", "torch.int32", "torch.int64", "torch.int"),
        *("torch.long", "torch.uint8", "torch.bool", "torch.Size", "torch.broadcast_shapes"),
        *("torch.contiguous_format", "torch.empty_strided", "torch.rand", "torch.randn"),
        *(f"torch.{name}" for name in FUNCTIONS),
        *(f"F.{name}" for name in FUNCTIONS),
        *("nn.Module", "nn.Parameter", "nn.Linear", "nn.LayerNorm", "nn.Embedding"),
        *("nn.BatchNorm1d", "nn.BatchNorm2d", "nn.GroupNorm", "nn.Conv1d", "nn.Conv2d"),
        *("nn.ModuleList",),
        *("math.ceil", "math.floor", "math.sqrt", "math.log2", "math.pi", "math.exp", "math.inf"),
        *("math.log", "math.prod", "math.e"),
    }
)
"""Attributes of modules that may be used, as a source names them."""

ATTRIBUTES = frozenset(
    {
        *("T", "to", "bool", "contiguous", "device", "dim", "dtype", "element_size", "expand"),
        *("expand_as", "fill_", "flatten", "float", "half", "is_contiguous", "is_cuda"),
        *("itemsize", "long", "movedim", "mT", "ndim", "ndimension", "new_empty", "new_full"),
        *("new_ones", "new_zeros", "numel", "permute", "reshape", "shape", "size", "squeeze"),
        *("stride", "t", "transpose", "unsqueeze", "view", "view_as", "zero_", "element_ty"),
        *("append", "bit_length", "weight", "bias", "eps", "is_floating_point", "clone"),
        *("add_", "amax", "amin", "exp", "sum", "mean", "mul_", "sqrt", "softmax", "tanh"),
        *("type", "value", "cumsum", "max", "min", "relu", "sigmoid", "matmul", "abs", "pow"),
    }
)
"""Attributes of any value: of tensors, of shapes and sizes, of layers, of lists."""
NAMES = {**{name: module for module, name in IMPORTS.items()}, "torch": "torch"}
"""Modules by the name that a source gives them."""
ODD_TEXT = re.compile(r"[^\n\t -~]|\A(.*\n)?.*coding[:=]")
"""Characters that are not printable ASCII, and the name of an encoding in the first two lines."""
SHORTER = (
    ("torch.nn.functional.", "F."),
    ("nn.functional.", "F."),
    ("torch.nn.", "nn."),
    ("triton.language.", "tl."),
)
"""Beginnings of dotted names, and what PATHS has in their place."""
ITERATORS = frozenset({"zip", "enumerate", "reversed"})
"""Builtins whose result is another one each time that it is read."""
OTHER_BUILTINS = frozenset(dir(builtins)) - BUILTINS
NODES = (
    *(ast.Module, ast.Expr, ast.Constant, ast.Name, ast.Attribute, ast.Subscript, ast.Slice),
    *(ast.Load, ast.Store, ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Return, ast.Pass),
    *(ast.If, ast.IfExp, ast.For, ast.While, ast.Break, ast.Continue, ast.Assert, ast.Raise),
    *(ast.Call, ast.keyword, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.Tuple, ast.List),
    *(ast.Dict, ast.Lambda, ast.arguments, ast.arg, ast.Starred),
    *(ast.GeneratorExp, ast.ListComp, ast.comprehension, ast.JoinedStr, ast.FormattedValue),
    *(ast.operator, ast.unaryop, ast.boolop, ast.cmpop),
)
"""Kinds of nodes, beside imports, functions and classes, which have checks of their own."""


class _NotPlain(Exception):
    """The source has something that is in no list."""


def is_plain(code: str) -> bool:
    """True if a candidate's source leaves the process that captures it as it was."""
    return not isinstance(parsed(code), str)


def keeps_nothing(tree: ast.Module) -> bool:
    """True if the host code of a plain source has no place for a number of its calls: no function
    but a constructor changes what it does not make itself, and nothing else makes an iterator."""
    once: list[ast.AST] = []
    for node in tree.body:
        parts = node.body if isinstance(node, ast.ClassDef) else [node]
        for part in parts:
            if not isinstance(part, ast.FunctionDef) or part.name == "__init__":
                once.append(part)
            elif not part.decorator_list:
                once.append(part.args)
                if any(_changes(one) for statement in part.body for one in ast.walk(statement)):
                    return False
    return not any(_iterates(one) for part in once for one in ast.walk(part))


def _changes(node: ast.AST) -> bool:
    """True for what may change an object of the host, such as a tensor on the CPU."""
    match node:
        case ast.AugAssign() | ast.Attribute(attr="append") | ast.keyword(arg="out"):
            return True
        case ast.Attribute(attr=name) if name.endswith("_"):
            return True
        case ast.Attribute(ctx=ast.Store()) | ast.Subscript(ctx=ast.Store()):
            return True
        case _:
            return False


def _iterates(node: ast.AST) -> bool:
    is_named = isinstance(node, ast.Name) and node.id in ITERATORS
    return is_named or isinstance(node, ast.GeneratorExp)


def parsed(code: str) -> ast.Module | str:
    """A plain source, or the first part of another one that is in no list."""
    if len(code) > MAX_BYTES or ODD_TEXT.search(code):
        return "a long source, or one with characters outside ASCII"
    try:
        _check_module(tree := ast.parse(code))
        _check_texts(tree)
    except _NotPlain as error:
        return str(error)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return type(error).__name__
    return tree


def _check_module(tree: ast.Module) -> None:
    for statement in tree.body:
        match statement:
            case ast.Import() | ast.ImportFrom():
                _check_import(statement)
            case ast.FunctionDef():
                _check_decorators(statement)
                _check_function(statement, has_self=False)
            case ast.ClassDef():
                _check_class(statement)
            case ast.Assign() | ast.Expr(value=ast.Constant()):
                _check(statement, 0)
            case _:
                raise _NotPlain(f"{type(statement).__name__} at the top")


def _check_texts(tree: ast.Module) -> None:
    """Refuses a text that is made, by f or by %, but of an error. One that stands alone is a
    comment."""
    allowed: set[ast.AST] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Assert(msg=ast.AST() as words) | ast.Raise(exc=ast.AST() as words):
                allowed.update(ast.walk(words))
            case ast.Expr(value=ast.Constant() as words):
                allowed.add(words)
            case _:
                pass
    for node in ast.walk(tree):
        is_made = isinstance(node, ast.JoinedStr) or (
            isinstance(node, ast.Constant) and isinstance(node.value, str) and "%" in node.value
        )
        if is_made and node not in allowed:
            raise _NotPlain("a text that is made")


def _check_import(node: ast.Import | ast.ImportFrom) -> None:
    """Allows `import torch`, `import torch.nn as nn`, `from torch import nn` and the like."""
    if isinstance(node, ast.ImportFrom):
        whole = [(f"{node.module}.{one.name}", one.asname or one.name) for one in node.names]
        is_odd = node.level or any(IMPORTS.get(module) != name for module, name in whole)
    else:
        whole = [(one.name, one.asname) for one in node.names]
        is_odd = any(
            module not in IMPORTS or (name != IMPORTS[module] if name else "." in module)
            for module, name in whole
        )
    if is_odd:
        raise _NotPlain(f"import of {whole}")


def _check_decorators(node: ast.FunctionDef) -> None:
    """A function at the top is Triton's or has no decorator. Defaults of Triton's are written out:
    the text says all about a kernel."""
    if any(ast.unparse(one) != "triton.jit" for one in node.decorator_list):
        raise _NotPlain("a decorator")
    defaults = (*node.args.defaults, *node.args.kw_defaults)
    is_constant = all(one is None or isinstance(one, ast.Constant) for one in defaults)
    if node.decorator_list and not is_constant:
        raise _NotPlain("a kernel's default that is no constant")


def _check_class(node: ast.ClassDef) -> None:
    """A module of torch with methods that have no decorator."""
    bases = [ast.unparse(base) for base in node.bases]
    if bases not in (["nn.Module"], ["torch.nn.Module"]) or node.keywords or node.decorator_list:
        raise _NotPlain("a class that is no module of torch")
    _check_bound(node.name)
    methods = {one.name for one in node.body if isinstance(one, ast.FunctionDef)}
    if methods & ATTRIBUTES:
        raise _NotPlain("a method that a value may have, too")
    for statement in node.body:
        match statement:
            case ast.FunctionDef(decorator_list=[]):
                _check_function(statement, has_self=True)
                _check_signature(statement, methods)
            case ast.Expr(value=ast.Constant()) | ast.Pass():
                pass
            case _:
                raise _NotPlain("a class with more than methods")


def _check_signature(node: ast.FunctionDef, methods: set[str]) -> None:
    """A method's defaults and annotations see the class's other methods as plain functions."""
    for part in (node.args, node.returns):
        for one in ast.walk(part) if part is not None else ():
            if isinstance(one, ast.Name) and one.id in methods:
                raise _NotPlain("a method as a value")


def _check_function(node: ast.FunctionDef, *, has_self: bool) -> None:
    if not (has_self and node.name == "__init__"):
        _check_bound(node.name)
    arguments = [*node.args.posonlyargs, *node.args.args]
    if has_self:
        if not arguments or arguments[0].arg != "self":
            raise _NotPlain("a method without self")
        if len(node.args.defaults) >= len(arguments):
            raise _NotPlain("a default of self")
    _check_arguments(node.args, has_self=has_self)
    if node.returns is not None:
        _check(node.returns, 0)
    for statement in node.body:
        _check(statement, 0)


def _check_arguments(node: ast.arguments, *, has_self: bool, depth: int = 0) -> None:
    everything = [*node.posonlyargs, *node.args, *node.kwonlyargs]
    everything += [one for one in (node.vararg, node.kwarg) if one is not None]
    for one in everything[1:] if has_self else everything:
        _check_bound(one.arg)
    for one in everything:
        if one.annotation is not None:
            _check(one.annotation, depth)
    for default in (*node.defaults, *node.kw_defaults):
        if default is not None:
            _check(default, depth)


def _check_bound(name: str) -> None:
    """Refuses to bind a module's name, `self`, a builtin or a hidden name."""
    is_taken = name in NAMES or name == "self" or name in BUILTINS or name in OTHER_BUILTINS
    if is_taken or name.startswith("__"):
        raise _NotPlain(f"{name} is bound")


def _check(node: ast.AST, depth: int) -> None:
    """Refuses whatever is in no list, in a node and below it."""
    if depth > MAX_DEPTH:
        raise _NotPlain("deep nesting")
    match node:
        case ast.Name():
            _check_name(node)
            return
        case ast.Attribute():
            _check_attribute(node, depth)
            return
        case ast.Lambda():
            _check_arguments(node.args, has_self=False, depth=depth + 1)
            _check(node.body, depth + 1)
            return
        case ast.Call(func=ast.Attribute(value=ast.Call(func=ast.Name(id="super")))):
            _check_super(node, depth)
            return
        case ast.keyword(arg=None):
            raise _NotPlain("keywords from a dict")
        case ast.Constant():
            if not isinstance(node.value, int | float | str | EllipsisType | None):
                raise _NotPlain("an odd constant")
            return
        case _:
            if not isinstance(node, NODES):
                raise _NotPlain(type(node).__name__)
    for child in ast.iter_child_nodes(node):
        _check(child, depth + 1)


def _check_name(node: ast.Name) -> None:
    """A module alone is no value, and nothing rebinds one."""
    if isinstance(node.ctx, ast.Store):
        _check_bound(node.id)
    elif node.id in NAMES or node.id in OTHER_BUILTINS or node.id == "super":
        raise _NotPlain(f"the name {node.id}")
    elif node.id.startswith("__"):
        raise _NotPlain("a hidden name")


def _check_attribute(node: ast.Attribute, depth: int) -> None:
    path = _path(node)
    if path is not None:
        if path not in PATHS or not isinstance(node.ctx, ast.Load):
            raise _NotPlain(path)
        return
    is_own = isinstance(node.value, ast.Name) and node.value.id == "self"
    if node.attr.startswith("_"):
        raise _NotPlain("a hidden attribute")
    if not is_own and (node.attr not in ATTRIBUTES or not isinstance(node.ctx, ast.Load)):
        raise _NotPlain(f"the attribute {node.attr}")
    _check(node.value, depth + 1)


def _path(node: ast.Attribute) -> str | None:
    """The dotted name of a module's attribute, as PATHS has it; None for that of a value."""
    parts: list[str] = []
    one: ast.expr = node
    while isinstance(one, ast.Attribute):
        parts.append(one.attr)
        one = one.value
    if not isinstance(one, ast.Name) or one.id not in NAMES:
        return None
    path = ".".join([one.id, *reversed(parts)])
    for module, name in SHORTER:
        if path.startswith(module):
            return name + path.removeprefix(module)
    return path


def _check_super(node: ast.Call, depth: int) -> None:
    """Allows `super().__init__()` and `super(Name, self).__init__()` alone."""
    assert isinstance(node.func, ast.Attribute)
    assert isinstance(node.func.value, ast.Call)
    inner = node.func.value
    if node.func.attr != "__init__" or node.args or node.keywords or inner.keywords:
        raise _NotPlain("more of super() than __init__()")
    for one in inner.args:
        _check(one, depth + 1)
