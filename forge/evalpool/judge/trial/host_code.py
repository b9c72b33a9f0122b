# pyright: strict, reportMatchNotExhaustive=false
"""Decides by a candidate's source alone that its host code depends on nothing but its arguments.

Called by `trials.py` before anything of a candidate runs. Host code is all that Python runs when
the module is imported, a model is made and `forward` is called; what nothing of this names is
none. It may name what `host_names.py` lists, and what the candidate defines. So a verdict holds in
any process: what a kernel is launched with depends on shapes, types and strides of the inputs, on
parameters and on the card. `host_flow.py` follows what lasts from one call to the next.

The source is hostile, and is never run here. What the lists rely on, and the checks here keep:

- a module is no value: it is named with an allowed attribute;
- no hidden name or attribute but of `self`, and `super().__init__()`;
- no iterator is kept, and no set's order is seen;
- a class defines no method that torch or Python calls by itself but `__init__` and `forward`.

A kernel's body is Triton's, and has rules of its own (`program/policy`); its names are Python's.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from functools import lru_cache

from forge.evalpool.judge.trial import host_names as lists
from forge.evalpool.judge.trial import host_parts
from forge.evalpool.judge.trial.host_flow import Flow
from forge.evalpool.judge.trial.remarks import foreign_words

MAX_SHARED_BYTES = 32_000
"""A longer source has a capture child of its own."""
MAX_DEPTH = 100
"""Nesting of a source: Python's own limits are far above."""
ODD_TEXT = re.compile(r"[^\n\t -~]|\A(.*\n)?.*coding[:=]")
"""Characters that are not printable ASCII, and the name of an encoding in the first two lines."""
NODES = (
    *(ast.Module, ast.Expr, ast.Constant, ast.Name, ast.Attribute, ast.Subscript, ast.Slice),
    *(ast.Load, ast.Store, ast.Del, ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Return, ast.Pass),
    *(ast.If, ast.IfExp, ast.For, ast.While, ast.Break, ast.Continue, ast.Assert, ast.Raise),
    *(ast.Call, ast.keyword, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.Tuple, ast.List),
    *(ast.Dict, ast.Set, ast.arguments, ast.arg, ast.Starred, ast.With, ast.withitem, ast.Global),
    *(ast.GeneratorExp, ast.ListComp, ast.DictComp, ast.comprehension, ast.JoinedStr),
    *(ast.FormattedValue, ast.operator, ast.unaryop, ast.boolop, ast.cmpop, ast.Delete),
)
"""Kinds of nodes, beside imports, functions and classes, which have checks of their own."""
INERT = (
    *(ast.Name, ast.Attribute, ast.Subscript, ast.Constant, ast.Tuple, ast.List, ast.BinOp),
    *(ast.operator, ast.expr_context),
)
"""Kinds of nodes of an annotation: it is evaluated, but its value is not seen."""


TRAINING_WORDS = (
    "cannot be judged: host code names training of a part, which Model does not read; name "
    "self.training of the model alone, or do the same in both modes"
)


@dataclass(frozen=True, slots=True)
class HostCode:
    """The findings about a source."""

    fault: str = ""
    """Why it cannot be judged."""
    line: int = 0
    is_shareable: bool = False
    """True if its capture leaves the process as it was."""
    training_line: int = 0
    """The line that names `training`, where Model must do so, too: it may be that of a part."""
    is_keeping: bool = True
    """True if it may keep what it computed in a call: it is called with the same tensors again."""
    card: tuple[str, ...] = ()
    """Facts of the card that it compares."""
    modes: tuple[str, ...] = ()
    """Modes that it asks for and is captured in, too: "gradients", where inputs require them, and
    "eval", where the model alone says which it is."""


@lru_cache(maxsize=32)
def host_code(code: str, *, entry_point: str) -> HostCode:
    """Reads a candidate's source, which must parse."""
    try:
        tree = host_parts.tree_of(code)
    except (SyntaxError, ValueError):
        return HostCode()  # of a reference: it says so where it runs
    try:
        parts = host_parts.parts_of(tree, entry_point)
        names = Names(parts, entry_point)
        names.check()
        flow = Flow(parts)
        flow.check()
    except host_parts.Refused as refused:
        start = "" if refused.is_whole else "cannot be judged: "
        return HostCode(fault=f"{start}{refused}", line=refused.line)
    except ValueError:  # of `ast.unparse`
        return HostCode(fault="cannot be judged: host code has a constant that cannot be written")
    except RecursionError:
        return HostCode(fault="cannot be judged: host code is nested too deeply")
    is_short = len(code) <= MAX_SHARED_BYTES and not ODD_TEXT.search(code)
    return HostCode(
        is_shareable=is_short and not names.is_alone,
        is_keeping=bool(flow.changed) or names.is_alone,
        training_line=names.training_line if names.is_of_part else 0,
        card=tuple(sorted(flow.card)),
        modes=(*["gradients"][: bool(parts.gradients)], *["eval"][: bool(names.training_line)]),
    )


@dataclass(slots=True)
class Names:
    """Checks every name of the parts of a source that run."""

    parts: host_parts.Parts
    entry_point: str
    is_alone: bool = False
    training_line: int = 0
    is_of_part: bool = False
    """True if `training` may be that of a part of the model."""
    _class_name: str = ""
    _scopes: list[frozenset[str]] = field(default_factory=list[frozenset[str]])
    _methods: set[ast.FunctionDef] = field(default_factory=set[ast.FunctionDef])
    _owners: set[ast.expr] = field(default_factory=set[ast.expr])
    """Where `self` is named as the owner of an attribute, or asked for one."""
    _is_kernel: bool = False
    _is_said: bool = False
    """True within an error's text."""

    def check(self) -> None:
        for one in self.parts.functions:
            self._require_free_names(one, {one.name})
        for path, node in self.parts.imports:
            self.is_alone |= path.split(".")[0] not in lists.PLAIN_MODULES
            if path.endswith("*"):
                raise host_parts.refusal(node, "all of a module", "import what it uses")
        for statement in (*self.parts.statements, *self.parts.functions):
            self._see(statement, 0)
        for one in self.parts.classes:
            self._class(one)
        for one in self.parts.idle:
            self._idle(one)

    def _idle(self, node: host_parts.Definition) -> None:
        """Checks the parts that run of a definition that nothing names."""
        for one in node.decorator_list:
            self._see(one, 0)
        if isinstance(node, ast.FunctionDef):
            self._arguments(node.args)
            return
        for one in node.body:
            if isinstance(one, ast.FunctionDef):
                self._idle(one)
            else:
                self._see(one, 0)

    def _class(self, node: ast.ClassDef) -> None:
        self._class_name = node.name
        if node.keywords:
            raise host_parts.refusal(node, "a metaclass")
        for one in (*node.bases, *node.decorator_list, *node.body):
            if isinstance(one, ast.FunctionDef):
                if not host_parts.is_decorated(one, "static"):
                    self._methods.add(one)
                is_odd = one.name.startswith("__") and one.name not in lists.DUNDERS
                if is_odd or one.name in lists.METHODS or one.name in lists.OF_MODULES:
                    raise host_parts.refusal(
                        one, f"{one.name} as its method", "torch or Python calls it"
                    )
            if not isinstance(one, ast.ClassDef):  # a part of its own
                self._see(one, 0)

    def _function(self, node: ast.FunctionDef, depth: int) -> None:
        for one in node.decorator_list:
            self._see(one, depth)
        self._arguments(node.args)
        if node.returns is not None:
            self._annotation(node.returns)
        before, self._is_kernel = self._is_kernel, self.parts.is_kernel(node)
        self._enter(node)
        for statement in node.body:
            self._see(statement, depth + 1)
        self._scopes.pop()
        self._is_kernel = before

    def _enter(self, node: ast.AST) -> None:
        """Opens a scope. `self` is a method's first argument, and nothing else."""
        bound = host_parts.bound_names(node)
        own = ""
        if isinstance(node, ast.FunctionDef) and node in self._methods:
            own = next((one.arg for one in (*node.args.posonlyargs, *node.args.args)), "")
        self._require_free_names(node, bound - ({own} & {"self", "cls"}))
        self._scopes.append(bound)

    def _require_free_names(self, node: ast.AST, bound: Set[str]) -> None:
        for name in sorted(bound & lists.RESERVED):
            raise host_parts.refusal(node, f"{name} anew")

    def _arguments(self, node: ast.arguments) -> None:
        everything = [*node.posonlyargs, *node.args, *node.kwonlyargs, node.vararg, node.kwarg]
        for one in everything:
            if one is not None and one.annotation is not None:
                self._annotation(one.annotation)
        for default in (*node.defaults, *node.kw_defaults):
            if default is None:
                continue
            if any(isinstance(one, ast.Call) for one in host_parts.walk(default)):
                raise host_parts.refusal(default, "a default that lasts between calls", "use None")
            self._see(default, 0)

    def _annotation(self, node: ast.expr) -> None:
        if not all(isinstance(one, INERT) for one in host_parts.walk(node)):
            raise host_parts.refusal(node, "a call as an annotation")

    def _see(self, node: ast.AST, depth: int) -> None:
        """Refuses whatever is in no list, in a node and below it."""
        if depth > MAX_DEPTH:
            raise host_parts.Refused(node, "host code is nested too deeply")
        match node:
            case ast.Name():
                self._name(node)
            case ast.Attribute():
                self._attribute(node, depth)
            case ast.Import() | ast.ImportFrom() | ast.Constant():
                pass  # what is imported is checked where it is named
            case ast.FunctionDef():
                self._function(node, depth)
            case ast.Try():
                self._try(node)
            case ast.AnnAssign():
                self._annotation(node.annotation)
                for one in (node.target, node.value):
                    if one is not None:
                        self._see(one, depth + 1)
            case ast.Raise() | ast.Assert():
                self._error(node, depth)
            case ast.Lambda() | ast.GeneratorExp() | ast.ListComp() | ast.DictComp():
                if isinstance(node, ast.Lambda):
                    self._arguments(node.args)
                self._enter(node)
                self._below(node, depth)
                self._scopes.pop()
            case ast.Call():
                self._call(node, depth)
            case ast.Assign(targets=[ast.Attribute() as one]) if self._is_switch(one):
                self._see(node.value, depth + 1)
            case _ if not isinstance(node, NODES):
                raise host_parts.refusal(node, type(node).__name__.lower())
            case _:
                self._below(node, depth)

    def _below(self, node: ast.AST, depth: int) -> None:
        for child in ast.iter_child_nodes(node):
            if self._is_passing(child) and not _reads_at_once(node, child):
                raise host_parts.refusal(
                    child, "an iterator or a set that is kept", "make it a tuple"
                )
            if child._fields and not isinstance(child, ast.arguments):  # others are operators
                self._see(child, depth + 1)

    def _is_passing(self, node: ast.AST) -> bool:
        """True for an iterator, which is another one each time that it is read, and a set, whose
        order is another one in each process."""
        match node:
            case ast.Call(func=ast.Name(id=name)) if not self._is_kernel:
                is_global = not self._is_local(name)
                return is_global and name in lists.ITERATORS | {"set", "frozenset"}
            case ast.Call(func=ast.Attribute() as func) if not self._is_kernel:
                return any(one.startswith("itertools.") for one in self._paths(func))
        return isinstance(node, ast.GeneratorExp | ast.Set)

    def _error(self, node: ast.Raise | ast.Assert, depth: int) -> None:
        """An error's text is seen by no program."""
        if isinstance(node, ast.Assert):
            self._see(node.test, depth + 1)
        before, self._is_said = self._is_said, True
        said = (node.msg,) if isinstance(node, ast.Assert) else (node.exc, node.cause)
        for one in said:
            if one is not None:
                self._see(one, depth + 1)
        self._is_said = before

    def _try(self, node: ast.Try) -> None:
        """Only an import may fail: another error would tell of the process."""
        bodies = [node.body, node.orelse, node.finalbody, *(one.body for one in node.handlers)]
        kinds = ast.Import | ast.ImportFrom | ast.Assign | ast.Pass | ast.Raise
        if self._scopes or not all(isinstance(one, kinds) for body in bodies for one in body):
            raise host_parts.refusal(node, "try", "let an error end the call")
        for one in (one for body in bodies for one in body):
            if not (isinstance(one, ast.Assign) and self.parts.modules_of(one)):
                self._see(one, 0)

    def _call(self, node: ast.Call, depth: int) -> None:
        match node.func:
            case ast.Attribute(value=ast.Call(func=ast.Name(id="super"), args=given), attr=name):
                if name not in ("__init__", "forward", "extra_repr", "reset_parameters"):
                    raise host_parts.refusal(node, f"super().{name}")
                self._owners.update(given)
                for one in (*given, *node.args, *node.keywords):
                    self._see(one, depth + 1)
                return
            case ast.Name(id="getattr" | "hasattr" | "setattr"):
                self._by_name(node)
                self._owners.update(node.args[:1])
            case ast.Name(id="isinstance" | "issubclass") if len(node.args) == 2:
                self._require_classes(node.args[1])
                self._owners.update(node.args[:1])
            case ast.Name(id="self" | "cls") | ast.Attribute():
                self._owners.add(node.func)
            case ast.Name(id="super"):
                raise host_parts.refusal(node, "super() without a method")
        self._below(node, depth)

    def _by_name(self, node: ast.Call) -> None:
        """`getattr(self, "weight")`: the name is a text, or one with a number in it."""
        match node.args:
            case [owner, ast.Constant(value=str() as text), *_]:
                is_set = isinstance(node.func, ast.Name) and node.func.id == "setattr"
                made = ast.Attribute(owner, text, ast.Store() if is_set else ast.Load())
                self._attribute(ast.copy_location(made, node), 0)
            case [ast.Name(id="self"), ast.JoinedStr(values=[ast.Constant(value=text), *_])] if (
                re.match(r"_?[a-zA-Z]", str(text)) and text not in lists.OF_MODULES
            ):
                pass
            case [_, ast.JoinedStr(values=[ast.Constant(value=text), *_])] if str(text).startswith(
                ("weight_", "bias_")
            ):
                pass
            case [ast.Name(id="self"), ast.JoinedStr(values=[ast.Constant(value=str()), *_]), _]:
                pass  # setattr; what it sets is read by other names of this list
            case _:
                raise host_parts.refusal(node, ast.unparse(node), "write the attribute's name out")

    def _require_classes(self, node: ast.expr) -> None:
        for one in node.elts if isinstance(node, ast.Tuple) else [node]:
            name = ast.unparse(one).rpartition(".")[2]
            is_layer = name[:1].isupper() and name not in lists.NO_CLASSES
            if not (name in lists.CLASSES or is_layer):
                raise host_parts.refusal(node, f"isinstance of {ast.unparse(node)}")

    def _is_local(self, name: str) -> bool:
        return any(name in one for one in self._scopes)

    def _name(self, node: ast.Name) -> None:
        name = node.id
        if name in ("self", "cls") and (
            node not in self._owners or not isinstance(node.ctx, ast.Load)
        ):
            raise host_parts.refusal(node, f"{name} as a value", "name its attributes")
        if name.startswith("__") and not (name in lists.TITLES and isinstance(node.ctx, ast.Store)):
            raise host_parts.refusal(node, name)
        if isinstance(node.ctx, ast.Store | ast.Del) or self._is_local(name):
            if not self._scopes and (name in self.parts.aliases or hasattr(builtins, name)):
                raise host_parts.refusal(node, f"{name} anew")
            return
        if name in self.parts.aliases:
            for path in self.parts.aliases[name]:
                self._require_path(node, path, name)
        elif name not in self.parts.own and hasattr(builtins, name):
            if name not in lists.BUILTINS:
                raise host_parts.refusal(node, name)
            self.is_alone |= name in lists.ALONE

    def _attribute(self, node: ast.Attribute, depth: int) -> None:
        if paths := self._paths(node):
            if not isinstance(node.ctx, ast.Load):
                raise host_parts.refusal(node, f"{ast.unparse(node)} to change it")
            for one in paths:
                self._require_path(node, one, ast.unparse(node))
            return
        if node.attr == "training" and not self._is_kernel:
            self.training_line = self.training_line or node.lineno
            is_model = ast.unparse(node) == "self.training" and self._class_name == self.entry_point
            self.is_of_part |= not is_model
        if not self._may_have(node):
            raise host_parts.refusal(node, ast.unparse(node))
        if node.attr in lists.CHANGING | lists.BUILDING and node not in self._owners:
            self._require_own(node)
        self._owners.add(node.value)
        self._see(node.value, depth + 1)

    def _may_have(self, node: ast.Attribute) -> bool:
        """True if an attribute of a value tells nothing but what the value is made of."""
        name, owner = node.attr, node.value.id if isinstance(node.value, ast.Name) else ""
        if self._is_said and name in ("__name__", "__class__"):
            return True
        if name.startswith("__") or name in lists.OF_MODULES:
            return False
        if isinstance(node.ctx, ast.Store | ast.Del):
            return name in ("data", "block_shape") or (
                name != "training" and owner in ("self", "ctx")
            )
        if self._is_kernel and name in lists.ASKED | {"device", "stride", "training"}:
            return False
        is_own = owner in ("self", "cls") or owner in self.parts.class_names
        is_own = is_own and (name in self.parts.attributes or name not in lists.TELLING)
        return is_own or (name not in lists.TELLING and (name[0] != "_" or name == "_replace"))

    def _require_own(self, node: ast.Attribute) -> None:
        """A method that changes what it belongs to is called where it is named."""
        owner = node.value.id if isinstance(node.value, ast.Name) else ""
        is_attribute = owner in ("self", "cls") and node.attr in self.parts.attributes
        if not is_attribute and (node.attr != "apply" or owner not in self.parts.class_names):
            raise host_parts.refusal(node, f"{ast.unparse(node)} as a value", "call it")

    def _is_switch(self, node: ast.Attribute) -> bool:
        is_switch = not lists.SWITCHES.isdisjoint(self._paths(node))
        self.is_alone |= is_switch
        return is_switch

    def _paths(self, node: ast.Attribute) -> Sequence[str]:
        return self.parts.paths(node, is_local=self._is_local)

    def _require_path(self, node: ast.AST, path: str, name: str) -> None:
        """Refuses a module's attribute that is in no list, and a module as a value."""
        whole = path.split(".")
        is_strange = self._is_kernel and not (
            whole[0] in ("triton", "math")
            or lists.TORCH_TYPE.fullmatch(path)
            or path.startswith("torch._inductor.")
        )
        for end in range(len(whole), 1, -1):
            owner, name_of = ".".join(whole[:end]), ".".join(whole[1:end])
            if (
                end < len(whole)
                and owner.startswith("torch.")
                and not owner.startswith("torch.nn.")
            ):
                is_strange |= name_of not in lists.TORCH  # `torch.random` is a module, too
            is_listed = not is_strange and _is_listed(owner)
            others = lists.TELLING | lists.BUILDING | lists.CHANGING
            if is_listed and not any(o[0] == "_" or o in others for o in whole[end:]):
                self.is_alone |= not lists.ALONE.isdisjoint(whole)
                return
        if "cpp_extension" in whole:
            words = "CUDA C++ is not judged; write a Triton kernel"
            raise host_parts.Refused(node, words, is_whole=True)
        if self._is_kernel and whole[0] in ("torch", "numpy"):
            raise host_parts.Refused(node, foreign_words(name))
        raise host_parts.refusal(node, name)


def _is_listed(path: str) -> bool:
    owner, _, name = path.rpartition(".")
    if owner.startswith("torch") and path.removeprefix("torch.") in lists.TORCH:
        return True
    if name.startswith("_"):
        return False
    match owner:
        case "torch" | "torch.ops.aten":
            return name in lists.COMPUTED
        case "torch.nn.functional":
            return name in lists.FUNCTIONAL or name in lists.COMPUTED
        case "torch.nn":
            return name[0].isupper() and name not in lists.NO_LAYERS
        case "torch.nn.init":
            return name.endswith("_")
        case "torch.linalg" | "torch.special":
            return f"{owner.removeprefix('torch.')}_{name}" in lists.COMPUTED
        case "triton.language":
            return name not in lists.INNER
        case "triton" | _ if path.startswith("triton.") and owner not in lists.LIBRARIES:
            return path.removeprefix("triton.") in lists.TRITON
    return owner in lists.LIBRARIES or path in lists.OTHERS


def _reads_at_once(node: ast.AST, child: ast.AST) -> bool:
    """True if a node reads this iterator below it where it stands, or asks a set for a value."""
    is_set = isinstance(child, ast.Set)
    match node:
        case ast.For(iter=one) | ast.comprehension(iter=one):
            return one is child and not is_set
        case ast.Compare(ops=ops):
            return all(isinstance(one, ast.In | ast.NotIn) for one in ops)
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
            return name in (("sorted", "len") if is_set else lists.CONSUMERS)
        case ast.Assign(targets=[ast.Tuple()]):
            return not is_set
        case _:
            return isinstance(node, ast.Starred | ast.Expr)
