# pyright: strict
"""Follows host code as it would run, call by call: what it decides by.

How the caller has laid out its tensors, where they are and which they are may be passed on, as
strides are, and put right (`x = x.contiguous()`), and decides nothing else. The same holds for the
type of what an operation gives, which autocast may choose, and for type, place and elements of a
tensor that is made without them, since they are the process's. What a call keeps is a cache, by the
rules of `host_kept.py`.
"""

from __future__ import annotations

import ast
import re
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from forge.evalpool.judge.program.ops import KINDS, Kind
from forge.evalpool.judge.trial.host_kept import (
    BROKEN,
    DEVICE,
    FRESH,
    KEPT_WORDS,
    LAYER,
    MADE,
    MARKS,
    MIXED,
    NEW,
    NOTHING,
    OWN,
    PLACE,
    PLAIN,
    TYPE,
    Closure,
    Frame,
    Function,
    Kept,
    Names,
    Seen,
    is_named,
    root_of,
    without,
)
from forge.evalpool.judge.trial.host_names import (
    ASKED,
    BUILDING,
    CARD,
    CASTS,
    CHANGING,
    COMPUTED,
    FACTORIES,
    KINDS_ASKED,
    OF_CARD,
    OF_TENSORS,
    READS,
    SIZES,
    TORCH_TYPE,
    VIEWS,
    WHOLE,
)
from forge.evalpool.judge.trial.host_parts import Refused, bound_names

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Sequence

    from forge.evalpool.judge.trial.host_parts import Parts

MAX_CALLS = 50_000
"""Statements and expressions that are followed; more are refused."""
MAX_NESTED = 40
"""Calls of own functions, one in the other."""
GRADIENTS = (".requires_grad", "torch.is_grad_enabled()")
"""Ends of names that say if a result will be differentiated."""
FIRST = ("__init__", "__post_init__", "load_reference")
"""Methods that are called once."""
MOVES = frozenset({"contiguous", "clone", "to", "cuda"})
"""Methods that put a tensor right."""
TEXTS = ("type", "str", "repr", "format")
"""Functions that tell what surrounds a tensor."""
SPECIFIC = frozenset({"device", "dtype", "memory_format"})
"""Keywords that decide where and how a result lies alone."""
CONSTANT = frozenset({OWN, FRESH, LAYER})
"""Marks of what is made of no argument: operations on it may be no work to the judge."""
UNTYPED = frozenset({FRESH, LAYER, MADE})
"""Marks of what has no type that the caller or the source decides."""
OF_TYPES = frozenset({"result_type", "promote_types", "can_cast", "finfo", "iinfo"})
"""Functions of torch's that tell the types of their arguments."""
TOLD = frozenset({"current_device", "is_grad_enabled"})
"""Functions of torch's that tell of the process."""
STREAMS = frozenset({"get_raw_stream", "_cuda_getCurrentRawStream"})
LASTING = frozenset({"set_grad_enabled", "manual_seed"})
"""Functions of torch's that change the process for good."""
FACTS_WORDS = "host code may pass it on, or put the tensor right: x = x.contiguous()"
TYPES_WORDS = (
    "a kernel compares types of its arguments, and one has that which this process gives it: "
    "make each tensor with a dtype and a device"
)


class Flow(Kept):
    """Follows one source."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self.card = set[str]()
        """Facts of the card that host code compares."""
        self._is_lax = False
        """True within a backward pass, which no judge runs."""
        self._known: dict[Any, tuple[Seen, set[str], str]] = {}
        """Results of functions by their arguments, with what they have filled and changed."""
        self._used = ""
        """An argument that the statement has used so far."""
        self._context: ast.expr | None = None
        """The value that a `with` enters."""
        self._asks_types = any(map(_is_asking, filter(parts.is_kernel, parts.functions)))
        """True if a kernel compares types of its arguments."""
        self._has_arrays = any("numpy" in path for path, _ in parts.imports)
        self._active: list[Function] = []
        self._count = 0

    def check(self) -> None:
        """Raises Refused."""
        known = None
        self._seek()
        while known != (found := self._found()):
            known = found
            self._count = 0
            try:
                self._pass()
            except Refused:
                if known == self._found():
                    raise  # else it may be a cache that was not known as one

    def _seek(self) -> None:
        """Finds what calls set, as far as it is written out: a cache is known before it is read."""
        names = self._called_names().difference(FIRST)
        found = [one for name in names for one in self.methods.get(name, ())]
        found += [one for name, one in self.functions.items() if name in names]
        for node in (node for one in found for node in ast.walk(one)):
            if isinstance(node, ast.Assign) and not _is_right([node]):
                for target in node.targets:
                    if isinstance(target, ast.Attribute | ast.Subscript) and (
                        place := self._place(target)
                    ):
                        self.changed.add(root_of(place))

    def _pass(self) -> None:
        held = None
        while held != self._held:  # by one constructor, and read by another
            held = dict(self._held)
            self._known.clear()
            self._at_the_top()
            for node in (one for name in FIRST for one in self.methods.get(name, ())):
                self._root(node)
        names = self._called_names().difference(FIRST)
        for name in sorted(names, key=lambda one: one != "forward"):
            for node in self.methods.get(name, ()):
                self._root(node)
            if name in self.functions and not self.parts.is_kernel(self.functions[name]):
                self._root(self.functions[name])
        for node in (*self.parts.statements, *self.functions.values()):
            self._lambdas(node)

    def _at_the_top(self) -> None:
        """Follows the statements at the top, and those of classes."""
        self.filled, self._frame = set[str](), Frame({}, shared={*self.parts.own})
        self._is_first = self._is_top = True
        self._block(self.parts.statements)
        for one in (one for each in self.parts.classes for one in each.body):
            match one:
                case (
                    ast.Assign(targets=[ast.Name(id=name)])
                    | ast.AnnAssign(target=ast.Name(id=name))
                ):
                    if one.value is not None:
                        self._hold(f"self.{name}", self._value(one.value))
                case _:
                    pass
        self._is_first = self._is_top = False

    def _called_names(self) -> set[str]:
        """Names of the functions and methods that a constructor or a call comes to."""
        found = {*FIRST, "forward", "__call__", "__len__", "backward"}
        pending = [*found]
        while pending:
            name = pending.pop()
            if name in FIRST:
                continue  # what these call is followed as they call it
            function = self.functions.get(name)
            for node in (*self.methods.get(name, ()), *([function] if function else ())):
                for one in ast.walk(node):
                    used = one.attr if isinstance(one, ast.Attribute) else ""
                    used = one.id if isinstance(one, ast.Name) else used
                    if used not in found and (used in self.methods or used in self.functions):
                        found.add(used)
                        pending.append(used)
        return found

    def _root(self, node: ast.FunctionDef) -> None:
        """Follows a function as others may call it."""
        self.filled = set[str]()
        self._is_first = node.name in FIRST
        self._is_lax = node.name in ("backward", "setup_context")
        self._frame = Frame({})
        is_forward = node.name in ("forward", "__call__")
        self._called(node, {} if is_forward else {"self": NOTHING}, None)
        self._is_first = self._is_lax = False

    def _lambdas(self, node: ast.AST) -> None:
        """Follows those of decorators and of statements at the top."""
        parts = node.decorator_list if isinstance(node, ast.FunctionDef) else [node]
        for one in (one for part in parts for one in ast.walk(part)):
            if isinstance(one, ast.Lambda):
                self.filled, self._frame = set[str](), Frame({})
                self._called(one, {}, None)

    # Calls

    def _called(self, node: Function, given: Names, outer: Frame | None) -> Seen:
        """The result of a function with these arguments; others are new."""
        if self._active.count(node) > 1:
            return NOTHING  # it calls itself, and was followed
        if len(self._active) > MAX_NESTED:
            raise Refused(node, "host code has too many calls in each other")
        arguments = node.args
        everything = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        everything += [one for one in (arguments.vararg, arguments.kwarg) if one is not None]
        known: Names = {"self": NOTHING, "cls": NOTHING} | _lasting(node) | given
        names = {
            one.arg: known.get(one.arg, NEW if given else replace(NEW, uses=one.arg))
            for one in everything
        }
        if outer is not None or self._asked:
            return self._followed(node, names, outer)
        state = frozenset(self.filled), self._key, self._control
        key = node, self._is_first, state, frozenset(names.items())
        if key not in self._known:
            before, self._mutated = self._mutated, ""
            found = self._followed(node, names, outer)
            self._known[key] = found, set(self.filled), self._mutated
            self._mutated = before
        found, filled, mutated = self._known[key]
        self.filled = set(filled)
        self._mutate(mutated)
        return found

    def _followed(self, node: Function, names: Names, outer: Frame | None) -> Seen:
        before, self._frame = self._frame, Frame(names, outer)
        key, control = self._key, self._control
        named = set[str]() if outer else set(filter(is_named, self.filled))
        self.filled -= named  # other names of its own are other keys
        self._active.append(node)
        try:
            if isinstance(node, ast.Lambda):
                return self._value(node.body)
            self._block(node.body)
            return Seen().joined(self._frame.result)
        finally:
            self._active.pop()
            self._frame, self._key, self._control = before, key, control
            self.filled = named | {one for one in self.filled if outer or not is_named(one)}
            self._mutate(self._mutated)

    def _methods(self, name: str) -> list[Closure]:
        return [(one, None) for one in self.methods.get(name, ())]

    def _own(self, node: ast.Call, functions: Sequence[Closure], *, is_method: bool) -> Seen:
        """The result of a call of one of these functions of the host."""
        given = [self._value(one) for one in node.args]
        named = {one.arg: self._value(one.value) for one in node.keywords}
        results: list[Seen] = []
        for function, outer in functions:
            names = [*function.args.posonlyargs, *function.args.args]
            is_plain = any("static" in ast.unparse(one) for one in _decorators(function))
            skipped = is_method and not is_plain
            pairs = zip((one.arg for one in names[skipped:]), given, strict=False)
            arguments = dict(pairs) | {name: one for name, one in named.items() if name}
            for rest in (function.args.vararg, function.args.kwarg):
                if rest is not None:
                    arguments[rest.arg] = Seen().joined([*given, *named.values()])
            arguments.setdefault("self", NOTHING)
            is_kept = any("cache" in ast.unparse(one) for one in _decorators(function))
            free = {n: replace(o, uses="", places=frozenset()) for n, o in arguments.items()}
            results.append(self._called(function, free if is_kept else arguments, outer))
            if is_kept:
                self._require_unused(node, results[-1].uses, ast.unparse(node.func))
                results += [Seen(uses=one.uses) for one in arguments.values()]
        self._used = ""
        return Seen().joined(results)

    # Statements: true if a block ends its function

    def _block(self, body: Sequence[ast.stmt]) -> bool:
        ends: list[bool] = []
        for number, one in enumerate(body):
            rest = [*body[number + 1 :]]
            if isinstance(one, ast.If) and not one.orelse and self._are_sides(one.body, rest):
                one = ast.copy_location(ast.If(one.test, one.body, rest), one)
                return any([*ends, self._statement(one)])
            ends.append(self._statement(one))  # every one is followed
        return any(ends)

    def _are_sides(self, body: Sequence[ast.stmt], rest: Sequence[ast.stmt]) -> bool:
        """True for `if ...: return self.x` with what makes it, and for two returns."""
        match body, rest:
            case [ast.Return()], [ast.Return()]:
                return True
            case [ast.Return(value=ast.expr() as value)], [_, *_]:
                parts = value.elts if isinstance(value, ast.Tuple) else [value]
                return all(self._place(one) is not None for one in parts)
            case _:
                return False

    def _statement(self, node: ast.stmt) -> bool:
        self._step(node)
        self._used = ""
        match node:
            case ast.Return():
                if node.value is not None:
                    found = self._value(node.value)
                    self._frame.result.append(found.using(self._control))
                return True
            case ast.Raise():
                return True
            case ast.Assert():
                self._test(node.test)
            case ast.Assign(targets=[ast.Attribute() as one]) if _bare(node.value) == ast.unparse(
                one
            ):
                self._value(node.value)  # put right, as `x = x.contiguous()` does
            case ast.Assign(targets=[ast.Attribute(attr="data" | "block_shape" as name)]) if (
                self._is_first or name == "block_shape"  # of a descriptor, in a hook
            ):
                self._value(node.value)
            case ast.Assign(targets=[ast.Name() as one]) if place := self._place(node.value):
                value = self._kept(node.value, place, is_read=False)  # where it is used, it is
                self._store(one, value)
            case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)) if len(
                targets
            ) == len(values):
                for target, one in zip(targets, [self._value(one) for one in values], strict=True):
                    self._store(target, one)
            case ast.Assign():
                value = self._value(node.value)
                for target in node.targets:
                    self._store(target, value)
                    if isinstance(target, ast.Name):
                        self._frame.parts[target.id] = self._texts(node.value)
            case ast.AnnAssign(value=ast.expr() as made):
                self._store(node.target, self._value(made))
            case ast.AugAssign():
                self._update(node)
            case ast.If():
                return self._if(node)
            case ast.For():
                self._loop(node.target, node.iter)
                with self._under(self._used):
                    self._repeated(node.body)
                return self._block(node.orelse)
            case ast.While():
                self._require_free(node, *self._test(node.test))
                with self._under(self._used):
                    self._repeated(node.body)
            case ast.With():
                for one in node.items:
                    self._context = one.context_expr
                    value = self._value(one.context_expr)
                    if one.optional_vars is not None:
                        self._store(one.optional_vars, value)
                return self._block(node.body)
            case ast.FunctionDef():
                self._frame.names[node.name] = Seen(function=(node, self._frame))
                if not self.parts.is_kernel(node):
                    self._aside(node)
            case ast.Global():
                self._frame.shared |= {*node.names}
            case ast.Delete():
                for one in node.targets:
                    if not isinstance(one, ast.Name):
                        self._change(one, one)
            case ast.Expr():
                self._value(node.value)
            case _:
                pass
        return False

    def _aside(self, node: Function) -> None:
        """Follows a function that was made here, as others may call it."""
        filled, first = set(self.filled), self._is_first
        self._is_first = False
        self._called(node, {}, self._frame)
        self.filled, self._is_first = filled, first

    def _repeated(self, body: Sequence[ast.stmt]) -> None:
        """A loop: what a turn has filled is whole after it. Followed twice, since a turn sees what
        the one before has made."""
        before = set(self.filled)
        for _ in range(2):
            self.filled = set(before)
            self._block(body)
        self.filled = before | {root_of(one) for one in self.filled - before}

    def _if(self, node: ast.If) -> bool:
        places, facts = self._test(node.test)
        if places:
            return self._fill(node, places, self._used)
        if facts and not (_are_one(node) or (_is_right(node.body) and _is_right(node.orelse))):
            self._require_free(node, places, self._facts(node.test, facts))
        names, filled = dict(self._frame.names), set(self.filled)
        with self._under(self._used):
            ends = self._block(node.body)
            made, self._frame.names = self._frame.names, names
            first, self.filled = self.filled, filled
            other_ends = self._block(node.orelse)
        self.filled = first if other_ends else self.filled if ends else self.filled & first
        for name, one in made.items() if not ends else ():
            known = self._frame.names.get(name)
            both = one if known is None or other_ends else known.joined([one])
            is_new = one.is_new and (known is None or other_ends or known.is_new)
            self._frame.names[name] = replace(both, is_new=is_new)
        return ends and other_ends

    @contextmanager
    def _under(self, used: str) -> Generator[None]:
        """Within, what is done depends on an argument."""
        before, self._control = self._control, self._control or used
        yield
        self._control = before

    def _fill(self, node: ast.If, places: set[str], used: str) -> bool:
        """A branch that asks for what an earlier call has kept: one side of it makes that, the
        other one takes it as it is."""
        is_hit = self._is_hit(node.body, places)
        hit, made = (node.body, node.orelse) if is_hit else (node.orelse, node.body)
        if not self._is_hit(hit, places) or not made:
            name = sorted(places)[0]
            raise Refused(
                node, f"host code decides by {name}, which an earlier call set; {KEPT_WORDS}"
            )
        self._fills |= {root_of(one) for one in places}
        before, names = set(self.filled), dict(self._frame.names)
        self.filled |= places
        taken_ends = self._block(hit)
        taken = {name for name, one in self._frame.names.items() if names.get(name) != one}
        self.filled = before
        texts, key = self._asked_for(node.test, places, is_hit=is_hit)
        self._frame.texts, old_texts = texts | places, self._frame.texts
        self._key, old_key = replace(key, uses=used), self._key
        self._used = ""
        self._test(node.test)
        with self._under(self._used):
            ends = self._block(made)
        self._frame.texts, self._key = old_texts, old_key
        if not ends or not isinstance(made[-1], ast.Raise):
            self._require_filled(node, places)
        self.filled |= places
        self._caches |= places
        for name in bound_names(ast.Module([*made], [])) & {*self._frame.names}:
            if name not in taken and not names.get(name, NOTHING).places & places:
                self._frame.names[name] = Seen(of=f"{name}, which a first call makes", is_fact=True)
        return ends and taken_ends

    # Places

    def _store(self, target: ast.expr, value: Seen) -> None:
        match target:
            case ast.Name(id=name) if name not in self._frame.shared:
                self._frame.names[name] = value.using(self._control)
                word = re.compile(rf"\b{name}\b")
                self.filled = {o for o in self.filled if not word.search(o.partition("[")[2])}
                self._frame.texts = without(self._frame.texts, word)
                known = self._frame.parts.items()
                self._frame.parts = {n: without(one, word) for n, one in known if n != name}
            case ast.Tuple(elts=elts) | ast.List(elts=elts):
                for one in elts:
                    self._store(one, replace(value, is_new=False, function=None))
            case ast.Starred(value=one):
                self._store(one, value)
            case ast.Attribute(value=ast.Name(id="ctx")):
                pass
            case ast.Subscript(value=owner):
                self._mutate(value.uses or self._value(target.slice).uses or self._control)
                place = self._place(target)
                if isinstance(owner, ast.Name):
                    known = self._frame.names.get(owner.id, NOTHING)
                    place = None if known.is_list else place
                if place is not None:
                    self._set(target, place, value)
                elif not (self._is_new(owner) and self._value(owner).is_new):
                    self._change(target, owner)
            case _:
                place = self._place(target)
                if place is None and self._is_top:
                    return  # a switch, or another name of what is defined
                if place is None:
                    raise Refused(target, f"host code sets {ast.unparse(target)}; {KEPT_WORDS}")
                self._set(target, place, value)

    def _update(self, node: ast.AugAssign) -> None:
        value = self._value(node.value)
        if isinstance(node.target, ast.Name) and node.target.id not in self._frame.shared:
            known = self._frame.find(node.target.id) or NOTHING
            if known.places and (value.is_list or self._has_arrays):
                self._update_place(node, value)
            seen = replace(known, function=None).joined([value]).using(self._control)
            self._frame.names[node.target.id] = replace(seen, places=known.places)
        elif self._place(node.target) is None:
            self._store(node.target, value.joined([self._value(node.target)]))
        else:
            self._update_place(node, value)

    def _update_place(self, node: ast.AugAssign, value: Seen) -> None:
        place = self._place(node.target)
        assert place is not None
        if root_of(place).removeprefix("self.") in self.parts.tensors:
            return
        if not self._is_made(root_of(place)):
            self.changed.add(root_of(place))
        self._read(node, place)
        self._set(node, place, value)

    def _loop(self, target: ast.expr, source: ast.expr) -> None:
        value = replace(self._value(source), is_new=False, is_list=False, function=None)
        self._decided(source, [value.marked(value.marks - {FRESH})])
        match source:
            case ast.Call(func=ast.Name(id="range")):
                value = replace(value, is_plain=not value.of)
            case ast.Call(func=ast.Name(id="enumerate")):
                match target:
                    case ast.Tuple(elts=[number, one]):
                        self._store(number, PLAIN)
                        self._store(one, value)
                        return
                    case _:
                        pass
            case _:
                pass
        self._store(target, value)

    # Values

    @contextmanager
    def _asking(self) -> Generator[tuple[set[str], list[Seen]]]:
        self._asked.append((set(), []))
        try:
            yield self._asked[-1]
        finally:
            self._asked.pop()

    def _test(self, node: ast.expr) -> tuple[set[str], list[Seen]]:
        """Places and facts that a test asks for."""
        with self._asking() as (places, facts):
            value = self._value(node)
        value = self._as_number(node, value)
        if value.of:
            facts.append(value)
        return places, [] if self._is_lax else facts

    def _facts(self, test: ast.expr, facts: Sequence[Seen]) -> Sequence[Seen]:
        """The facts without those of gradients, where all tests of them are alike and have no more
        than two answers: the judge has both."""
        found = test.values if isinstance(test, ast.BoolOp) else [test]
        texts = frozenset(one for one in map(ast.unparse, found) if one.endswith(GRADIENTS))
        left = [one for one in facts if not one.of.endswith(GRADIENTS)]
        is_and = not isinstance(test, ast.BoolOp) or isinstance(test.op, ast.And)
        is_alike = self.parts.gradients in (frozenset(), texts) and is_and
        if left or not is_alike or not all(one.of in texts and not one.places for one in facts):
            return facts
        self.parts.gradients = texts
        return []

    def _require_free(self, node: ast.AST, places: set[str], facts: Sequence[Seen]) -> None:
        if places:
            name = sorted(places)[0]
            raise Refused(node, f"host code decides by {name}, an earlier call's; {KEPT_WORDS}")
        if facts:
            raise Refused(node, f"host code decides by {facts[0].of}; {FACTS_WORDS}")

    def _decided(self, node: ast.AST, parts: Iterable[Seen]) -> Seen:
        """The value of a comparison."""
        facts = [one for one in (self._as_number(node, one) for one in parts) if one.of]
        if facts and self._asked:
            self._asked[-1][1].extend(facts)
        elif facts and not self._is_lax:
            self._require_free(node, set(), facts)
        return NOTHING

    def _as_number(self, node: ast.AST, value: Seen) -> Seen:
        """A value that the host asks for: numbers in a tensor that was made without a type are
        rounded to the process's own."""
        self.card |= value.marks.difference(MARKS)
        if value.of or not value.is_rounded:
            return value
        return Seen(of=ast.unparse(node), is_fact=True, marks=value.marks)

    def _step(self, node: ast.AST) -> None:
        self._count += 1
        if self._count > MAX_CALLS:
            raise Refused(node, "host code is too long to be followed")

    def _value(self, node: ast.expr) -> Seen:
        before, self._used = self._used, ""
        found = self._told(node)
        uses, key = found.uses or self._used, found.key if isinstance(node, ast.Name) else ""
        texts = self._frame.texts
        if texts and (self._place(node) in texts or not texts.isdisjoint(_tellings(node))):
            uses, key = "", ast.unparse(node)
        self._used = before or uses
        is_same = (uses, key) == (found.uses, found.key)
        return found if is_same else replace(found, uses=uses, key=key)

    def _told(self, node: ast.expr) -> Seen:
        self._step(node)
        if (place := self._place(node)) is not None:
            return self._kept(node, place)
        match node:
            case ast.Name(id=name):
                found = self._frame.find(name)
                function = self.functions.get(name)
                if found is None and function is None and name in TEXTS:
                    return Seen(of=name, is_fact=True)
                if found is None and name in self.parts.aliases:
                    return Seen().joined(self._of_module(node, o) for o in self.parts.aliases[name])
                return found or Seen(function=None if function is None else (function, None))
            case ast.Attribute():
                return self._attribute(node)
            case ast.Subscript(value=owner, slice=key):
                index = self._value(key)
                self._decided(node, [index])
                found = self._value(owner)
                is_new = found.is_new and not found.places
                return replace(found.joined([index]), is_new=is_new, function=None)
            case ast.Call():
                return self._call(node)
            case ast.Compare(left=left, comparators=others, ops=ops):
                if isinstance(ops[0], ast.In | ast.NotIn) and (place := self._place(others[0])):
                    others = []  # a cache is asked for the key
                    self._read(node, f"{place}[{ast.unparse(left)}]")
                parts = [self._value(one) for one in (left, *others)]
                if not others and parts[0].of.endswith(DEVICE):
                    parts = []
                if isinstance(ops[0], ast.Is | ast.IsNot) and not self._is_first:
                    given = [one for one in parts if one.uses and TYPE not in one.marks]
                    parts += [Seen(of=ast.unparse(node), is_fact=True)] * (len(given) > 1)
                are_none = all(
                    isinstance(one, ast.Constant) and one.value is None for one in others
                )
                is_none = are_none and all(isinstance(one, ast.Is | ast.IsNot) for one in ops)
                if is_none:
                    parts = [Seen(marks=one.marks.difference(MARKS)) for one in parts]
                if any(isinstance(one, ast.Is | ast.IsNot | ast.In | ast.NotIn) for one in ops):
                    return self._decided(node, parts)
                made = self._decided(node, [one.marked(one.marks - {FRESH}) for one in parts])
                return made.marked(Seen().joined(parts).marks - {TYPE})  # it may be a tensor
            case ast.BoolOp(values=values):
                parts = [self._value(one) for one in values]
                self._decided(node, parts)
                return Seen().joined(parts)
            case ast.UnaryOp(op=ast.Not(), operand=one):
                return self._decided(node, [self._value(one)])
            case ast.IfExp():
                return self._chosen(node)
            case ast.Lambda():
                self._aside(node)
                return Seen(function=(node, self._frame))
            case ast.Constant(value=float() | complex()):
                return PLAIN.marked(frozenset({BROKEN}))
            case ast.Constant(value=str()):
                return PLAIN.marked(frozenset({PLACE}))
            case ast.Constant():
                return PLAIN
            case ast.JoinedStr():
                return self._text(node)
            case ast.BinOp(left=ast.Constant(value=str()), op=ast.Mod()):
                return self._text(node)
            case ast.ListComp() | ast.GeneratorExp() | ast.DictComp():
                return self._comprehension(node)
            case ast.List() | ast.Dict() | ast.Set() | ast.Tuple() | ast.BinOp():
                parts = [self._value(one) for one in _below(node)]
                is_list = isinstance(node, ast.List | ast.Dict)
                is_new = not isinstance(node, ast.Tuple)
                made = Seen(is_new=is_new, is_list=is_list, is_plain=True).joined(parts)
                if not isinstance(node, ast.BinOp):
                    return made
                marks = _result(made.marks)
                if sum(one.is_new and one.uses != "" for one in parts) > 1:
                    marks |= {MIXED}
                if isinstance(node.op, ast.Div) or BROKEN in marks:
                    marks |= {MADE, BROKEN}
                elif isinstance(node.op, ast.Pow):
                    marks |= {MADE, *[BROKEN][: not isinstance(node.right, ast.Constant)]}
                return replace(made, places=frozenset(), marks=marks)
            case _:
                return replace(
                    Seen().joined([self._value(one) for one in _below(node)]), is_new=True
                )

    def _kept(self, node: ast.expr, place: str, *, is_read: bool = True) -> Seen:
        """The value at a place. The keys that lead to it are values of their own."""
        if is_read:
            self._read(node, place)
        root, parts = root_of(place), node
        while not isinstance(parts, ast.Name | ast.Attribute):
            match parts:
                case ast.Subscript(value=owner, slice=key):
                    index = self._value(key)
                case ast.Call(func=ast.Attribute(value=owner), args=[key, *rest]):
                    index = Seen().joined([self._value(one) for one in (key, *rest)])
                case ast.Call(args=[owner, key, *rest]):
                    index = Seen().joined([self._value(one) for one in rest])
                    if isinstance(owner, ast.Name):
                        break
                case _:
                    break
            if not index.of.endswith(DEVICE):
                self._decided(node, [index])
            self._used = self._used or index.uses
            parts = owner
        known = self._frame.find(parts.id) if isinstance(parts, ast.Name) else None
        known = (known or NOTHING).joined([self._of_place(root)])
        uses = known.uses or self._used
        if not self._is_first:
            uses = uses or (place if place == "self.training" else self._put.get(root, ""))
        return replace(known, places=known.places | {place}, is_new=False, uses=uses)

    def _of_place(self, root: str) -> Seen:
        """A kept value, as its constructor left it. The caller decides on types of parameters."""
        held = self._held.get(root, NOTHING)
        if self._is_first:
            return held
        is_given = root.removeprefix("self.") in self.parts.tensors
        return held.marked(held.marks.difference(MARKS if is_given else (LAYER,)))

    def _text(self, node: ast.expr) -> Seen:
        """A text that is made tells what surrounds a tensor in it."""
        for one in _below(node):
            self._value(one)
        parts = [one.value for one in ast.walk(node) if isinstance(one, ast.FormattedValue)]
        is_plain = isinstance(node, ast.JoinedStr) and all(
            self._value(one).is_plain for one in parts
        )
        return PLAIN if is_plain else Seen(of="a text that is made", is_fact=True)

    def _of_module(self, node: ast.AST, path: str) -> Seen:
        """A module's attribute, by its whole name."""
        name = path.rpartition(".")[2]
        if name in LASTING and not (self._is_first or node is self._context):
            raise Refused(node, f"host code names {path} in a call, which it outlasts")
        if TORCH_TYPE.fullmatch(path):
            return Seen(marks=frozenset({TYPE}))
        if name in FACTORIES:
            return Seen(marks=frozenset({FRESH, BROKEN}))
        if name in OF_CARD:
            return Seen(marks=frozenset({name}))
        is_method = path.startswith("torch.Tensor.")
        is_told = name in (ASKED | KINDS_ASKED | {"stride"} if is_method else TOLD | STREAMS)
        return Seen(of=path, is_fact=name not in STREAMS) if is_told else NOTHING

    def _attribute(self, node: ast.Attribute) -> Seen:
        if self._is_module(node):
            first, _, rest = ast.unparse(node).partition(".")
            paths = self.parts.wholes(first, rest)
            return Seen().joined(self._of_module(node, one) for one in paths)
        found = self._value(node.value)
        if found.marks & OF_CARD:
            if node.attr not in CARD:
                words = "what is alike on each card of a kind is in the list of host code"
                raise Refused(node, f"host code names {ast.unparse(node)}; {words}")
            return replace(found, marks=frozenset({node.attr}))
        marks = found.marks.difference(MARKS if node.attr in SIZES else ())
        if node.attr in KINDS_ASKED:
            is_place = node.attr in ("device", "is_cuda")
            is_told = bool(marks & {FRESH, LAYER}) or (bool(marks & {MADE, MIXED}) and not is_place)
            kinds = {"dtype": {TYPE}, "device": {PLACE}}
            marks = marks & {FRESH} | kinds.get(node.attr, set[str]())
            if is_told:
                return Seen(of=ast.unparse(node), is_fact=True, marks=marks | {MADE})
        found = found.marked(marks)
        if node.attr in SIZES and found.uses:
            found = replace(found, uses=f"{found.uses}.{node.attr}")
        elif node.attr == "training":
            found = replace(found, uses=ast.unparse(node))
        place = f"self.{node.attr}"
        is_tensors = node.attr in OF_TENSORS and not found.places
        if place in self.changed and not (is_tensors or self._is_made(place)):
            self._require_unkept(node, place)
        is_own = bool(found.places) or node.attr in self.parts.attributes
        if node.attr in ASKED or (node.attr == "stride" and not is_own):
            return Seen(of=ast.unparse(node), is_fact=node.attr != "stride")
        if node.attr in ("device", "requires_grad"):
            return replace(found, of=ast.unparse(node), is_fact=True)
        if node.attr == "type" and isinstance(node.value, ast.Attribute | ast.Name):
            return replace(found, of="", is_fact=False)  # of a device
        return replace(found, is_new=found.is_new and node.attr in VIEWS, function=None)

    def _chosen(self, node: ast.IfExp) -> Seen:
        places, facts = self._test(node.test)
        sides = (node.body, node.orelse)
        if facts and len({_bare(one) for one in sides}) > 1:
            self._require_free(node, places, self._facts(node.test, facts))
        self._require_free(node, places, ())
        found = [self._value(one) for one in sides]
        are_plain = all(one.is_plain for one in found)
        return replace(
            Seen().joined(found), is_new=all(o.is_new for o in found), is_plain=are_plain
        )

    def _comprehension(self, node: ast.ListComp | ast.GeneratorExp | ast.DictComp) -> Seen:
        before, self._frame = self._frame, Frame({}, self._frame, self._frame.shared)
        try:
            for one in node.generators:
                self._loop(one.target, one.iter)
                for test in one.ifs:
                    self._require_free(test, *self._test(test))
            parts = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
            is_list = not isinstance(node, ast.GeneratorExp)
            return Seen(is_new=True, is_list=is_list).joined([self._value(one) for one in parts])
        finally:
            self._frame = before

    def _call(self, node: ast.Call) -> Seen:
        match node.func:
            case ast.Name(id=name):
                return self._call_name(node, name)
            case ast.Attribute(value=ast.Call(func=ast.Name(id="super"))):
                return replace(self._arguments(node), places=frozenset(), is_new=True)
            case ast.Attribute():
                return self._call_attribute(node, node.func)
            case ast.Subscript(value=kernel):
                found = self._value(kernel)
                given = [self._value(one) for one in _below(node)]
                self._decided(node, [one for one in given if one.is_fact])
                self._mutate(self._used or self._control)
                if self._asks_types and any(UNTYPED & one.marks for one in given):
                    raise Refused(node, TYPES_WORDS)
                marks = _result(found.joined(given).marks)  # it may be no kernel
                return Seen(of=found.of, is_fact=found.is_fact, marks=marks)
            case _:
                found = self._value(node.func)
                if found.function is not None:
                    return self._own(node, [found.function], is_method=False)
                made = self._arguments(node).joined([found])
                return made.marked(_result(made.marks))

    def _passed(self, node: ast.Call) -> list[Seen]:
        """The arguments of a call, but those that say where a result lies alone."""
        used = self._used
        self._specific(node)
        name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        given = [self._value(one) for one in node.args]
        if name in MOVES | CASTS:
            given, self._used = [replace(one, uses="") for one in given], used
        elif name.endswith("_like") and f"{_text(node.args[:1])}.shape" in self._frame.texts:
            given[0], self._used = replace(given[0], uses=""), used
        given += [self._value(one.value) for one in node.keywords if one.arg not in SPECIFIC]
        if name.endswith("_") or any(one.arg == "out" for one in node.keywords):
            self._mutate(self._used or self._control)
        return [one if one.function is None else self._handed(one.function) for one in given]

    def _specific(self, node: ast.Call) -> dict[str, Seen]:
        """The arguments that say where and how a result lies alone."""
        used = self._used
        found = {one.arg: self._value(one.value) for one in node.keywords if one.arg in SPECIFIC}
        self._used = used
        return found

    def _handed(self, function: Closure) -> Seen:
        """The result of a function that another one calls."""
        node, outer = function
        if isinstance(node, ast.FunctionDef) and self.parts.is_kernel(node):
            return NOTHING
        filled = set(self.filled)
        found = self._called(node, {}, outer)
        self.filled = filled
        return replace(found, places=frozenset(), is_new=False, is_list=False, function=None)

    def _arguments(self, node: ast.Call) -> Seen:
        return Seen().joined(self._passed(node))

    def _call_name(self, node: ast.Call, name: str) -> Seen:
        found = self._frame.find(name)
        own = self._value(ast.Name(name, ast.Load())).function
        if own is not None:
            return self._own(node, [own], is_method=False)
        given = self._arguments(node)
        if found is not None:
            return given.joined([found, Seen(marks=_result(given.marks | found.marks))])
        if name in self.parts.aliases:
            paths = self.parts.aliases[name]
            return Seen(is_new=True).joined(self._called_module(node, one) for one in paths)
        if name in self.parts.class_names:
            return replace(given, places=frozenset(), is_new=True)
        if name in TEXTS or (name in READS and given.is_rounded):
            return Seen(of=ast.unparse(node), is_fact=True)
        if name in SIZES:
            given = given.marked(given.marks.difference(MARKS))
        if name in ("bool", "any", "all") and given.of:
            return self._decided(node, [given])
        if name == "isinstance":
            return NOTHING
        if name in ("getattr", "hasattr"):
            owner, key = node.args[:2]
            text = key.value if isinstance(key, ast.Constant) else "weight"
            made = ast.Attribute(owner, str(text), ast.Load())
            found = self._attribute(ast.copy_location(made, node))
            is_asked = name == "hasattr" or len(node.args) > 2
            if is_asked and self._used and not (self._is_first or found.places):
                return Seen(of=ast.unparse(node), is_fact=True)
            return found if name == "getattr" else NOTHING
        if name == "setattr" and not self._is_first:
            raise Refused(node, f"host code calls setattr in a call; {KEPT_WORDS}")
        if name in ("list", "dict", "set", "sorted", "tuple"):
            return replace(given, is_new=True, is_list=True)
        return replace(given, places=frozenset())

    def _call_attribute(self, node: ast.Call, func: ast.Attribute) -> Seen:
        name, owner = func.attr, func.value
        is_module = isinstance(owner, ast.Name | ast.Attribute) and self._is_module(owner)
        if is_module and name not in BUILDING:
            first, _, rest = ast.unparse(func).partition(".")
            paths = self.parts.wholes(first, rest)
            found = Seen().joined(self._called_module(node, one) for one in paths)
            return replace(found, is_new=name not in VIEWS)
        if name == "apply" and isinstance(owner, ast.Name) and owner.id in self.parts.class_names:
            return self._own(node, self._methods("forward"), is_method=True)
        if name in self.methods and name != "forward":
            self._value(owner)
            return self._own(node, self._methods(name), is_method=True)
        if name in CHANGING and not self._is_first:
            self._mutate(self._arguments(node).uses or self._control)
            self._change(node, owner)
            return NOTHING
        if name in CHANGING:
            place = self._place(owner)
            if place is not None and not self._is_made(root_of(place)):
                self._change(node, owner)
            return replace(self._arguments(node), is_new=True)
        if name in BUILDING and not self._is_first and name != "eval":
            raise Refused(node, f"host code calls {ast.unparse(func)} in a call; {KEPT_WORDS}")
        found = self._value(func)
        if name in ASKED or name == "stride":
            is_fact = name != "stride"
            return Seen(of=ast.unparse(node), is_fact=is_fact) if found.of else found
        given = self._passed(node)
        if name in ("get", "index", "count", "__getitem__"):
            self._decided(node, given)
        owned = self._value(owner)
        if name.startswith("new_"):
            self._used = Seen().joined(given).uses
        if name in KINDS_ASKED and found.of and not given:
            return found
        is_part = isinstance(owner, ast.Name) and owner.id == "self"
        marks = self._marks(node, "" if is_part else name, owned, given)
        if name in ("to", "cuda", "type"):
            return replace(owned, is_new=False, marks=marks)
        if name in READS and owned.is_rounded and name not in CASTS:
            return Seen(of=ast.unparse(node), is_fact=True)
        if name in ("format", "join"):
            made = Seen(of="a text that is made", is_fact=True)
            return made if name == "format" else replace(self._arguments(node), places=frozenset())
        made = Seen(of=owned.of, is_fact=owned.is_fact).joined(given)
        is_typed = name == "view" and any(TYPE in one.marks for one in given)
        if is_typed and owned.marks & UNTYPED:
            made = Seen(of=ast.unparse(node))  # its shape tells the type
        is_view = name in VIEWS or name in ("values", "items", "keys", "copy")
        places = owned.places if is_view else frozenset[str]()
        return replace(made, places=places, is_new=not is_view or owned.is_new, marks=marks)

    def _called_module(self, node: ast.Call, path: str) -> Seen:
        """The result of a module's function, by its whole name."""
        name, given = path.rpartition(".")[2], self._passed(node)
        known = self._of_module(node, path)
        if known.of or name in OF_CARD:
            return replace(known, of=known.of and ast.unparse(node))
        if name in ("device", "get_active_torch_device"):
            return Seen(marks=frozenset({PLACE}))
        made, fact = Seen().joined(given), Seen(of=ast.unparse(node), is_fact=True)
        made = replace(made, places=made.places if name in VIEWS else frozenset())
        if path.startswith("torch.nn.") and name[0].isupper():
            return made.marked(frozenset({LAYER}))
        if name == "result_type" or (name in OF_TYPES and (not given or made.marks & UNTYPED)):
            return fact.marked(frozenset({TYPE}))
        if path.startswith("torch."):
            return made.marked(self._marks(node, name, [*given, NOTHING][0], given[1:]))
        if not path.startswith(("math.", "numpy.")):
            return made
        return fact if FRESH in made.marks else made.marked(made.marks | {BROKEN})

    def _marks(
        self, node: ast.Call, name: str, own: Seen, others: Sequence[Seen]
    ) -> frozenset[str]:
        """Marks of the result of an operation on tensors."""
        asked = self._specific(node)
        types = [one for one in (*others, *asked.values()) if TYPE in one.marks]
        odd = {MADE} if any(one.of for one in types) else set[str]()
        marks = own.marks - {TYPE}
        given = Seen().joined(others).marks - {TYPE}
        if name in FACTORIES:
            is_whole = name in WHOLE and BROKEN not in marks | given
            is_typed = TYPE in asked.get("dtype", NOTHING).marks
            is_placed = PLACE in asked.get("device", NOTHING).marks
            kept = OWN if is_typed and is_placed else FRESH
            return frozenset({kept, *[BROKEN][: not is_whole]}) | odd
        if name in CASTS and (types or name not in ("to", "type", "type_as")):
            marks -= {MADE}
        elif name in SIZES:
            marks = marks.difference(MARKS)
        elif name in COMPUTED - VIEWS and not name.startswith("new_") and name[-5:] != "_like":
            is_light = KINDS.get(name, Kind.COMBINE) is Kind.COMBINE  # the policy lets pass a few
            more = {MADE, *[BROKEN][: name not in WHOLE]} if is_light else set[str]()
            marks = _result(marks | given) | more
        elif name not in VIEWS | CASTS:
            marks = _result(marks | given)
        return marks | odd | ({OWN} if name == "cpu" else set[str]())

    def _is_module(self, node: ast.expr) -> bool:
        while isinstance(node, ast.Attribute):
            node = node.value
        is_local = isinstance(node, ast.Name) and self._frame.find(node.id) is not None
        return isinstance(node, ast.Name) and node.id in self.parts.aliases and not is_local


def _lasting(node: Function) -> Names:
    """Arguments with a list or a dict as their default."""
    everything = [*node.args.posonlyargs, *node.args.args]
    pairs = [*zip(reversed(everything), reversed(node.args.defaults), strict=False)]
    pairs += [
        (one, made)
        for one, made in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
        if made
    ]
    return {
        one.arg: Seen(places=frozenset({f"{one.arg}.default"}))
        for one, made in pairs
        if any(isinstance(part, ast.List | ast.Dict) for part in ast.walk(made))
    }


def _result(marks: frozenset[str]) -> frozenset[str]:
    """Marks of what is computed of values with these."""
    return marks | {MADE} if marks & CONSTANT else marks


def _is_asking(kernel: ast.FunctionDef) -> bool:
    """True for a kernel that compares types."""
    tests = [node for node in ast.walk(kernel) if isinstance(node, ast.Compare)]
    parts = [node for test in tests for node in ast.walk(test) if isinstance(node, ast.Attribute)]
    return any(one.attr in ("dtype", "element_ty", "primitive_bitwidth") for one in parts)


def _text(nodes: Sequence[ast.expr]) -> str:
    return ", ".join(map(ast.unparse, nodes))


def _tellings(node: ast.expr) -> set[str]:
    """Texts of values that tell what an expression does."""
    match node:
        case ast.Call(func=ast.Attribute(value=one, attr=name)) if name in SIZES:
            return {ast.unparse(node), f"{ast.unparse(one)}.shape"}
        case _:
            return {ast.unparse(node)}


def _decorators(node: Function) -> Sequence[ast.expr]:
    return node.decorator_list if isinstance(node, ast.FunctionDef) else ()


def _below(node: ast.AST) -> list[ast.expr]:
    found: list[ast.expr] = []
    for one in ast.iter_child_nodes(node):
        if isinstance(one, ast.expr):
            found.append(one)
        elif isinstance(one, ast.keyword):
            found.append(one.value)
    return found


def _bare(node: ast.expr) -> str:
    """A value without what puts it right: `x` for `x.contiguous()`."""
    match node:
        case ast.Call(func=ast.Attribute(value=one, attr=name)) if name in MOVES:
            return _bare(one)
        case _:
            return ast.unparse(node)


def _are_one(node: ast.If) -> bool:
    """True if both sides return the same value, one of them put right."""
    match node.body, node.orelse:
        case [ast.Return(value=ast.expr() as one)], [ast.Return(value=ast.expr() as other)]:
            return _bare(one) == _bare(other)
        case _:
            return False


def _is_right(body: Sequence[ast.stmt]) -> bool:
    """True if a block ends the call by an error, or puts values right."""
    if body and isinstance(body[-1], ast.Raise):
        return True
    for one in body:
        match one:
            case ast.Pass() | ast.Expr(value=ast.Call(func=ast.Attribute(attr="to" | "cuda"))):
                pass
            case ast.Assign(targets=[target], value=value):
                lefts = target.elts if isinstance(target, ast.Tuple) else [target]
                rights = value.elts if isinstance(value, ast.Tuple) else [value]
                if [ast.unparse(left) for left in lefts] != [_bare(right) for right in rights]:
                    return False
            case ast.If():
                if not (_is_right(one.body) and _is_right(one.orelse)):
                    return False
            case _:
                return False
    return True
