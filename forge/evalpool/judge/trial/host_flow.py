# pyright: strict, reportMatchNotExhaustive=false
"""Follows host code as it would run, call by call: what it decides by, and what it keeps.

How the caller has laid out its tensors, where they are and which they are may be passed on, as
strides are, and put right (`x = x.contiguous()`), and decides nothing else. The same holds for the
type of what an operation gives, which autocast may choose, and for type, place and elements of a
tensor that is made without them, since they are the process's.

Two calls of `forward` with the same tensors must do the same, whatever was called before. A class
may keep what its constructor makes. What a call keeps, on `self` or at the top, is a cache: a
branch that asks for it does nothing but fill it, and its value depends on parameters alone, or on
nothing else but what the branch compares or the key that it is kept under:

    if self.packed is None:
        self.packed = self.weight.t().contiguous()
    if x.shape not in self.spaces:
        self.spaces[x.shape] = torch.empty(x.shape, dtype=x.dtype, device=x.device)

A type and a device may be the first call's: a problem has one. So is the size of a buffer that
grows. What `capture` can see, a change of an argument or of a module, it refuses there.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeAlias

from forge.evalpool.judge.program.ops import KINDS, Kind
from forge.evalpool.judge.trial import host_names as lists
from forge.evalpool.judge.trial.host_parts import Parts, Refused, bound_names, is_decorated, walk

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
OWN, FRESH, LAYER, MADE, MIXED, TYPE, PLACE, BROKEN = MARKS = (
    *("own", "fresh", "layer", "made", "mixed", "type", "place", "broken"),
)
"""Marks: of a tensor that host code makes; of one without a type or a place; of a new parameter or
layer; of what an operation gives, whose type may be the process's; of two arguments in one, whose
type is the process's if one is a number; of a type; of a place; of what may be no whole number."""
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
ADDRESS_WORDS = "pass the tensor itself to a kernel, and no address"
TYPES_WORDS = (
    "a kernel compares types of its arguments, and one has that which this process gives it: "
    "make each tensor with a dtype and a device"
)
DEVICE = ".device"
"""End of a fact that may be in a key."""
SIZE = re.compile(r"\.(shape|size|numel)")
KEPT_WORDS = (
    "what a call keeps is a cache, filled by arguments and parameters alone: "
    "if self.x is None: self.x = ..."
)
KEYS_WORDS = (
    "a cache depends on parameters alone, or is asked for all that it depends on: "
    "if key not in self.x: self.x[key] = ..."
)
Function: TypeAlias = "ast.FunctionDef | ast.Lambda"
Closure: TypeAlias = "tuple[Function, Frame | None]"


@dataclass(frozen=True, slots=True)
class Seen:
    """Facts about a value that the rules ask for.

    Attributes:
        of: What it tells of the caller; "" for nothing.
        is_fact: True if it is no stride, which a launch may have.
        places: Where it may be kept: an attribute of the model, a name at the top.
        is_new: True for an object of this call alone.
        is_list: True for a list that is made here.
        is_plain: True for what is made of constants.
        function: A function of the host, and the names that it sees.
        marks: Those of MARKS, and facts of the card.
        uses: An argument of the call that it depends on, or `self.training`; "" for none.
        key: The text of the key of a cache that it is; "" for none.
    """

    of: str = ""
    is_fact: bool = False
    places: frozenset[str] = frozenset()
    is_new: bool = False
    is_list: bool = False
    is_plain: bool = False
    function: Closure | None = None
    marks: frozenset[str] = frozenset()
    uses: str = ""
    key: str = ""

    def joined(self, others: Iterable[Seen]) -> Seen:
        made = [self, *others]
        return replace(
            self,
            of=max((one.of for one in made), key=lambda of: (of != "", not of.endswith(DEVICE))),
            is_fact=any(one.is_fact for one in made),
            places=frozenset[str]().union(*(one.places for one in made)),
            uses=next((one.uses for one in made if one.uses), ""),
            is_plain=all(one.is_plain and not one.is_list for one in made),
            marks=frozenset[str]().union(*(one.marks for one in made)),
        )

    def marked(self, marks: frozenset[str]) -> Seen:
        return self if marks == self.marks else replace(self, marks=marks)

    def using(self, argument: str) -> Seen:
        """The same value, where an argument has a part in it."""
        return self if self.uses or not argument else replace(self, uses=argument)

    @property
    def is_rounded(self) -> bool:
        """True for numbers that are rounded to the process's own type."""
        return {FRESH, BROKEN} <= self.marks


NOTHING = Seen()
NEW = Seen(is_new=True)
PLAIN = Seen(is_plain=True)
Names: TypeAlias = "dict[str, Seen]"


@dataclass(slots=True, eq=False)
class Frame:
    """A call of a function."""

    names: Names
    outer: Frame | None = None
    shared: set[str] = field(default_factory=set[str])
    """Names of the module that it binds."""
    result: list[Seen] = field(default_factory=list[Seen])
    parts: dict[str, frozenset[str]] = field(default_factory=dict[str, frozenset[str]])
    """Texts of the parts of a tuple, by its name."""
    texts: frozenset[str] = frozenset()
    """Texts of the values that are the key of what is made here."""

    def find(self, name: str) -> Seen | None:
        """A local name of this function, or of one around it."""
        if name in self.names:
            return self.names[name]
        return self.outer.find(name) if self.outer is not None else None


@dataclass(frozen=True, slots=True)
class Key:
    """The key that a call has asked a cache for, while it fills it."""

    places: frozenset[str] = frozenset()
    """Places with a key: nothing else is kept with them."""
    slots: frozenset[tuple[str, str]] = frozenset()
    """Places that keep the key, with its text."""
    uses: str = ""


class Flow:
    """Follows one source."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.functions = {one.name: one for one in parts.functions}
        self.methods: dict[str, list[ast.FunctionDef]] = {}
        for node in (node for one in parts.classes for node in one.body):
            if isinstance(node, ast.FunctionDef):
                self.methods.setdefault(node.name, []).append(node)
        self.card = set[str]()
        """Facts of the card that host code compares."""
        self.changed = set[str]()
        """Roots of the places that some call changes."""
        self._parts = set[str]()
        """Places that some call changes."""
        self._fills = set[str]()
        """Roots of the places that a branch asks for."""
        self._put: dict[str, str] = {}
        """Arguments that kept values depend on, by the roots of their places."""
        self._caches = set[str]()
        """Places that a branch has filled, if no earlier call has."""
        self._held: Names = {}
        """Values that constructors and statements at the top have kept, by the roots of places."""
        self._known: dict[Any, tuple[Seen, set[str], str]] = {}
        """Results of functions by their arguments, with what they have filled and changed."""
        self._asks_types = any(map(_is_asking, filter(parts.is_kernel, parts.functions)))
        """True if a kernel compares types of its arguments."""
        code = [*parts.statements, *parts.functions, *parts.classes, *(o for _, o in parts.imports)]
        self._has_arrays = any("numpy" in ast.unparse(one) for one in code)
        self._begin()

    def _begin(self) -> None:
        """Nothing is being followed."""
        self._count = 0
        self._active: list[Function] = []
        self._frame = Frame({})
        self.filled = set[str]()
        """Places that this call has filled."""
        self._asked: list[tuple[set[str], list[Seen]]] = []
        """Places and facts that a test asks for."""
        self._key = Key()
        self._control = ""
        """An argument that decides if the statement runs."""
        self._used = ""
        """An argument that the statement has used so far."""
        self._mutated = ""
        """An argument that was put into a value of this call."""
        self._context: ast.expr | None = None
        """The value that a `with` enters."""
        self._is_first = self._is_top = False
        """True within a constructor; for statements at the top."""
        self._is_lax = False
        """True within a backward pass, which no judge runs."""

    def check(self) -> None:
        known = None
        self._seek()
        while known != (found := (self.changed | self._parts, {*self._fills}, {**self._put})):
            known = found
            self._begin()
            try:
                self._pass()
            except Refused:
                if known == (self.changed | self._parts, self._fills, self._put):
                    raise  # else it may be a cache that was not known as one

    def _hold(self, root: str, value: Seen) -> None:
        told = replace(value, places=frozenset(), is_new=False, function=None, uses="", key="")
        known = self._held.get(root, told)
        self._held[root] = replace(known.joined([told]), is_list=known.is_list or told.is_list)

    def _seek(self) -> None:
        """Finds what calls set by assignments: a cache is known before it is read."""
        for node in (node for one in self._followed_later for node in walk(one)):
            if not isinstance(node, ast.Assign):
                continue
            parts = [o for o in node.targets if isinstance(o, ast.Attribute | ast.Subscript)]
            if parts and not _is_right([node]):
                self.changed |= {root_of(place) for place in map(self._place, parts) if place}

    def _pass(self) -> None:
        held = None
        while held != self._held:  # by one constructor, and read by another
            held = dict(self._held)
            self._known.clear()
            self._at_the_top()
            for node in (one for name in FIRST for one in self.methods.get(name, ())):
                self._root(node)
        for node in self._followed_later:
            is_top = node is self.functions.get(node.name)  # no method is a kernel
            if not (is_top and self.parts.is_kernel(node)):
                self._root(node)
        for one in (*self.parts.statements, *self.functions.values()):
            parts = one.decorator_list if isinstance(one, ast.FunctionDef) else [one]
            for node in (node for part in parts for node in walk(part)):
                if isinstance(node, ast.Lambda):
                    self._root(node)

    def _at_the_top(self) -> None:
        self.filled, self._frame = set[str](), Frame({}, shared={*self.parts.own})
        self._is_first = self._is_top = True
        self._block(self.parts.statements)
        for one in (one for each in self.parts.classes for one in each.body):
            match one:
                case (
                    ast.Assign(targets=[ast.Name(id=name)], value=ast.expr() as value)
                    | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
                ):
                    self._hold(f"self.{name}", self._value(value))
        self._is_first = self._is_top = False

    @cached_property
    def _followed_later(self) -> list[ast.FunctionDef]:
        """Functions and methods that a call comes to, and constructors; `forward` first. What is
        called once is followed as it is called."""
        found = ["forward", *FIRST, *sorted(lists.BY_OTHERS), *self._handed_on()]
        for name in found:  # which grows
            for node in () if name in FIRST else self._named(name):
                for one in walk(node):
                    used = _ends(one)
                    if used not in found and (used in self.methods or used in self.functions):
                        found.append(used)
        return [node for name in found if name not in FIRST for node in self._named(name)]

    def _handed_on(self) -> list[str]:
        """Names of functions and methods that are passed on or kept: who has them may call them."""
        code = [*self.parts.statements, *self.parts.functions, *self.parts.classes]
        nodes = [one for each in code for one in walk(each)]
        calls = [one for one in nodes if isinstance(one, ast.Call)]
        at_once = {one.func for one in calls}
        at_once |= {each for one in calls if _ends(one.func) == "apply" for each in one.args}
        said = [one.value for one in self.parts.statements if isinstance(one, ast.Expr)]
        at_once |= {each for one in said if isinstance(one, ast.Tuple) for each in one.elts}
        names = {_ends(one) for one in nodes if one not in at_once}
        return sorted(names & (self.methods.keys() | self.functions.keys()))

    def _named(self, name: str) -> list[ast.FunctionDef]:
        return [*self.methods.get(name, ()), *filter(None, [self.functions.get(name)])]

    def _root(self, node: Function) -> None:
        """Follows a function as others may call it."""
        name = node.name if isinstance(node, ast.FunctionDef) else "forward"
        self.filled, self._frame = set[str](), Frame({})
        self._is_first, self._is_lax = name in FIRST, name in ("backward", "setup_context")
        self._called(node, {} if name in ("forward", "__call__") else {"self": NOTHING}, None)
        self._is_first = self._is_lax = False

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
        if isinstance(node, ast.Lambda):
            found = self._value(node.body)
        else:
            self._block(node.body)
            found = Seen().joined(self._frame.result)
        self._active.pop()
        self._frame, self._key, self._control = before, key, control
        self.filled = named | {one for one in self.filled if outer or not is_named(one)}
        self._mutate(self._mutated)
        return found

    def _methods(self, name: str) -> list[Closure]:
        return [(one, None) for one in self.methods.get(name, ())]

    def _own(self, node: ast.Call, functions: Sequence[Closure], *, is_method: bool) -> Seen:
        given = [self._value(one) for one in node.args]
        named = {one.arg: self._value(one.value) for one in node.keywords}
        results: list[Seen] = []
        for function, outer in functions:
            names = [*function.args.posonlyargs, *function.args.args]
            skipped = is_method and not is_decorated(function, "static")
            pairs = zip((one.arg for one in names[skipped:]), given, strict=False)
            arguments = dict(pairs) | {name: one for name, one in named.items() if name}
            for rest in (function.args.vararg, function.args.kwarg):
                if rest is not None:
                    arguments[rest.arg] = Seen().joined([*given, *named.values()])
            arguments.setdefault("self", NOTHING)
            is_kept = is_decorated(function, "cache")
            free = {n: replace(o, uses="", places=frozenset()) for n, o in arguments.items()}
            results.append(self._called(function, free if is_kept else arguments, outer))
            if is_kept:
                self._require_unused(node, results[-1].uses, ast.unparse(node.func))
                places = frozenset({ast.unparse(node.func)})
                results += [Seen(uses=one.uses, places=places) for one in arguments.values()]
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
        return False

    def _aside(self, node: Function) -> None:
        """Follows a function that was made here, as others may call it."""
        filled, first = set(self.filled), self._is_first
        self._is_first = False
        self._called(node, {}, self._frame)
        self.filled, self._is_first = filled, first

    def _repeated(self, body: Sequence[ast.stmt]) -> None:
        """A loop, followed twice: a turn sees what the one before has made, and filled whole."""
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
            raise kept_wrongly(node, f"decides by {min(places)}, which an earlier call set")
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
        open_ = [place for place in places if not self._is_filled(place)]
        if open_ and not (ends and isinstance(made[-1], ast.Raise)):
            raise kept_wrongly(node, f"asks for {min(open_)} and does not set it")
        self.filled |= places
        self._caches |= places
        for name in bound_names(ast.Module([*made], [])) & {*self._frame.names}:
            if name not in taken and not names.get(name, NOTHING).places & places:
                self._frame.names[name] = Seen(of=f"{name}, which a first call makes", is_fact=True)
        return ends and taken_ends

    # Places

    def _require_unused(self, node: ast.AST, uses: str, place: str) -> None:
        if uses:
            raise Refused(node, f"host code keeps what depends on {uses} in {place}; {KEYS_WORDS}")

    def _mutate(self, used: str) -> None:
        """Notes that an argument was put into a value of this call, whatever its name."""
        if used:
            self._mutated = used
            names = self._frame.names
            names |= {name: one.using(used) for name, one in names.items()}

    def _asked_for(
        self, test: ast.expr, places: set[str], *, is_hit: bool
    ) -> tuple[frozenset[str], Key]:
        """Texts of all that is alike in two calls where the second one takes what the first one has
        kept, and the places that see to it."""
        keyed = {one for one in places if "[" in one and "*" not in one}
        if keyed:
            found = [ast.parse(one, mode="eval").body for one in keyed]
            parts = [n for one in found for n in walk(one) if isinstance(n, ast.Subscript)]
            texts = [self._texts(one.slice) for one in parts]
            return frozenset[str]().union(*texts), Key(places=frozenset(keyed))
        match test:
            case ast.UnaryOp(op=ast.Not(), operand=one):
                return self._asked_for(one, places, is_hit=not is_hit)
            case ast.BoolOp(op=op, values=values) if isinstance(op, ast.And) == is_hit:
                parts = [self._asked_for(one, places, is_hit=is_hit) for one in values]
                return (
                    frozenset[str]().union(*(texts for texts, _ in parts)),
                    Key(slots=frozenset[tuple[str, str]]().union(*(key.slots for _, key in parts))),
                )
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                for kept, one in ((left, right), (right, left)):
                    place = self._place(kept)
                    owner = kept
                    while place is None and isinstance(
                        owner, ast.Attribute | ast.Subscript | ast.Call
                    ):
                        owner = owner.func if isinstance(owner, ast.Call) else owner.value
                        place = self._place(owner)
                    if place not in places:
                        continue
                    is_alike = isinstance(op, ast.Eq if is_hit else ast.NotEq)
                    is_order = isinstance(op, ast.Lt | ast.LtE | ast.Gt | ast.GtE)
                    if is_alike or (is_order and SIZE.search(self._value(one).uses)):
                        slot = [(place, ast.unparse(one))][: owner is kept]
                        return self._texts(one), Key(slots=frozenset(slot))
        return frozenset(), Key()

    def _texts(self, node: ast.expr) -> frozenset[str]:
        found = frozenset({ast.unparse(node)})
        match node:
            case ast.Name(id=name):
                return found | self._frame.parts.get(name, frozenset())
            case ast.Tuple(elts=parts) | ast.Call(func=ast.Name(id="tuple"), args=parts):
                return found.union(*map(self._texts, parts))
        return found

    def _is_hit(self, body: Sequence[ast.stmt], places: set[str]) -> bool:
        """True if a block does nothing but take what was kept."""
        roots = {root_of(one) for one in places}
        for one in body:
            match one:
                case ast.Return(value=ast.expr() as value):
                    pass
                case ast.Assign(targets=[ast.Name()], value=value):
                    pass
                case ast.Pass() | ast.Expr(value=ast.Constant()):
                    continue
                case _:
                    return False
            parts = value.elts if isinstance(value, ast.Tuple) else [value]
            found = [self._place(part) for part in parts]
            if not all(place is not None and root_of(place) in roots for place in found):
                return False
        return True

    def _place(self, node: ast.expr) -> str | None:
        """The place of a value from call to call: `self.x`, `self.cache[key]`, `table`."""
        match node:
            case ast.Attribute(value=ast.Name(id=owner), attr=name):
                is_own = owner in ("self", "cls") or owner in self.parts.class_names
                is_method = name in self.methods
                return f"self.{name}" if is_own and not is_method else None
            case ast.Name(id=name):
                found = self._frame.find(name) if name not in self._frame.shared else None
                if found is not None:
                    return next(iter(sorted(found.places)), None)
                is_own = name in self.parts.own and name not in self.functions
                return name if is_own and name not in self.parts.class_names else None
            case (
                ast.Subscript(value=owner, slice=key)
                | ast.Call(func=ast.Attribute(value=owner, attr="get"), args=[key, *_])
            ):
                place = self._place(owner)
                return None if place is None else f"{place}[{ast.unparse(key)}]"
            case ast.Call(func=ast.Name(id="getattr" | "hasattr"), args=[owner, name, *_]):
                is_own = isinstance(owner, ast.Name) and owner.id == "self"
                text = name.value if isinstance(name, ast.Constant) else "*"
                return f"self.{text}" if is_own else None
        return None

    def _is_filled(self, place: str) -> bool:
        """True if this call has set it. Of a cache that may be an earlier call's, parts that some
        call sets are not what they were at first."""
        around = [one for one in self.filled if place.startswith(f"{one}[")]
        return place in self.filled or not all(
            one in self._caches and any(part.startswith(f"{one}[") for part in self._parts)
            for one in around
        )

    def _may_change(self, value: Seen) -> bool:
        """True for what was kept and may be a list, a dict or an array: `+=` changes it."""
        unknown = {o: Seen(is_list=not o.startswith("self.")) for o in value.places}
        held = [(o, self._held.get(root_of(o), one)) for o, one in unknown.items()]
        return any(
            (one.is_list and "[" not in place) or (self._has_arrays and not one.is_plain)
            for place, one in held
        )

    def _is_tensor(self, place: str) -> bool:
        """True for a parameter or a buffer, and parts of it."""
        return root_of(place).removeprefix("self.") in self.parts.tensors

    def _is_made(self, place: str) -> bool:
        """True for an attribute of the instance that this constructor makes, and for a name that a
        statement at the top binds."""
        root = root_of(place)
        is_own = root.startswith("self.") and root.removeprefix("self.") not in self.parts.shared
        return self._is_first and (is_own or self._is_top)

    def _read(self, node: ast.AST, place: str) -> None:
        is_kept = root_of(place) in self.changed and not self._is_tensor(place)
        if not is_kept or self._is_filled(place) or self._is_made(place):
            return  # no call changes what is there; a tensor in it is seen by the judge
        if self._asked:
            self._asked[-1][0].add(place)
            return
        raise kept_wrongly(node, f"reads {place}, which an earlier call set")

    def _set(self, node: ast.AST, place: str, value: Seen) -> None:
        root = root_of(place)
        if self._is_tensor(place) and place != root:
            return
        if self._is_made(root):
            self._hold(root, value)
            self.filled.add(place)
            return
        if value.of and not (value.key and value.of.endswith(DEVICE)):
            raise kept_wrongly(node, f"keeps {value.of} in {place}")
        self.changed.add(root)
        self._parts.add(place)
        used = value.uses or self._control
        if root in self._fills:
            self._require_unused(node, used, place)
            is_apart = (self._key.places or "[" in place) and place not in self._key.places
            slot = dict(self._key.slots).get(place, value.key)
            if self._key.uses and (is_apart or slot != value.key):
                self._require_unused(node, self._key.uses, place)
            used = self._key.uses
        self._put[root] = self._put.get(root) or used
        self.filled.add(place)
        for name, one in self._frame.names.items():
            if place in one.places:  # what it was before
                self._frame.names[name] = Seen(of=f"{name}, an earlier call's", is_fact=True)

    def _change(self, node: ast.AST, target: ast.expr) -> None:
        """A change of a list or dict, by what it has."""
        if isinstance(target, ast.Name) and self._frame.names.get(target.id, NOTHING).is_list:
            return  # a list of this call, whatever is in it
        place = self._place(target)
        if (
            self._is_new(target)
            if place is None
            else self._is_made(place) or self._is_tensor(place)
        ):
            return
        raise kept_wrongly(node, f"changes {ast.unparse(target)}, which may last from call to call")

    def _is_new(self, target: ast.expr) -> bool:
        """True for what this call has made, and no call around it."""
        while isinstance(target, ast.Subscript | ast.Attribute | ast.Call):
            target = target.func if isinstance(target, ast.Call) else target.value
        name = target.id if isinstance(target, ast.Name) else ""
        return self._frame.names.get(name, NOTHING).is_new

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
                    raise kept_wrongly(target, f"sets {ast.unparse(target)}")
                self._set(target, place, value)

    def _update(self, node: ast.AugAssign) -> None:
        value = self._value(node.value)
        if isinstance(node.target, ast.Name) and node.target.id not in self._frame.shared:
            known = self._frame.find(node.target.id) or NOTHING
            is_added = value.is_list or isinstance(node.value, ast.Tuple)
            if (known.places and is_added) or self._may_change(known):
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
        if self._is_tensor(place):
            return
        if not self._is_made(place):
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
        self._store(target, value)

    # Values

    def _test(self, node: ast.expr) -> tuple[set[str], list[Seen]]:
        """Places and facts that a test asks for."""
        self._asked.append((set(), []))
        value = self._as_number(node, self._value(node))
        places, facts = self._asked.pop()
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
            raise kept_wrongly(node, f"decides by {min(places)}, an earlier call's")
        if facts:
            words = ADDRESS_WORDS if facts[0].of.endswith(".data_ptr()") else FACTS_WORDS
            raise Refused(node, f"host code decides by {facts[0].of}; {words}")

    def _decided(self, node: ast.AST, parts: Iterable[Seen]) -> Seen:
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
        if texts and (self._place(node) in texts or not texts.isdisjoint(told_by(node))):
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
                are_same = all(isinstance(one, ast.Is | ast.IsNot) for one in ops)
                is_told = any(one.of.startswith("getattr(") for one in parts)
                if are_same and not is_told and all(ast.unparse(one) == "None" for one in others):
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
                is_list = isinstance(node, ast.List | ast.Dict) or any(one.is_list for one in parts)
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
        held = self._held.get(root, NOTHING)  # as its constructor left it
        if not self._is_first:  # the caller decides on types of parameters
            left = MARKS if self._is_tensor(root) else (LAYER,)
            held = held.marked(held.marks.difference(left))
        known = (known or NOTHING).joined([held])
        uses = known.uses or self._used
        if not self._is_first:
            uses = uses or (place if place == "self.training" else self._put.get(root, ""))
        return replace(known, places=known.places | {place}, is_new=False, uses=uses)

    def _text(self, node: ast.expr) -> Seen:
        """A text that is made tells what surrounds a tensor in it."""
        for one in _below(node):
            self._value(one)
        parts = [one.value for one in walk(node) if isinstance(one, ast.FormattedValue)]
        is_plain = isinstance(node, ast.JoinedStr) and all(
            self._value(one).is_plain for one in parts
        )
        return PLAIN if is_plain else Seen(of="a text that is made", is_fact=True)

    def _of_module(self, node: ast.AST, path: str) -> Seen:
        """A module's attribute, by its whole name."""
        name = path.rpartition(".")[2]
        if name in LASTING and not (self._is_first or node is self._context):
            raise Refused(node, f"host code names {path} in a call, which it outlasts")
        if lists.TORCH_TYPE.fullmatch(path):
            return Seen(marks=frozenset({TYPE}))
        if name in lists.FACTORIES:
            return Seen(marks=frozenset({FRESH, BROKEN}))
        if name in lists.OF_CARD:
            return Seen(marks=frozenset({name}))
        is_method = path.startswith("torch.Tensor.")
        is_told = name in (
            lists.ASKED | lists.KINDS_ASKED | {"stride"} if is_method else TOLD | STREAMS
        )
        return Seen(of=path, is_fact=name not in STREAMS) if is_told else NOTHING

    def _attribute(self, node: ast.Attribute) -> Seen:
        if paths := self._paths(node):
            return Seen().joined(self._of_module(node, one) for one in paths)
        found = self._value(node.value)
        if found.marks & lists.OF_CARD:
            if node.attr not in lists.CARD:
                words = "what is alike on each card of a kind is in the list of host code"
                raise Refused(node, f"host code names {ast.unparse(node)}; {words}")
            return replace(found, marks=frozenset({node.attr}))
        marks = found.marks.difference(MARKS if node.attr in lists.SIZES else ())
        if node.attr in lists.KINDS_ASKED:
            is_place = node.attr in ("device", "is_cuda")
            is_told = bool(marks & {FRESH, LAYER}) or (bool(marks & {MADE, MIXED}) and not is_place)
            kinds = {"dtype": {TYPE}, "device": {PLACE}}
            marks = marks & {FRESH} | kinds.get(node.attr, set[str]())
            if is_told:
                return Seen(of=ast.unparse(node), is_fact=True, marks=marks | {MADE})
        found = found.marked(marks)
        if node.attr in lists.SIZES and found.uses:
            found = replace(found, uses=f"{found.uses}.{node.attr}")
        elif node.attr == "training":
            found = replace(found, uses=ast.unparse(node))
        place = f"self.{node.attr}"
        is_tensors = node.attr in lists.OF_TENSORS and not found.places
        if place in self.changed and not (
            is_tensors or self._is_made(place) or self._is_tensor(place)
        ):  # there may be several such objects; methods of its class may read it
            raise kept_wrongly(node, f"reads {ast.unparse(node)}, which an earlier call set")
        is_own = bool(found.places) or node.attr in self.parts.attributes
        if node.attr in lists.ASKED or (node.attr == "stride" and not is_own):
            return Seen(of=ast.unparse(node), is_fact=node.attr != "stride")
        if node.attr in ("device", "requires_grad"):
            return replace(found, of=ast.unparse(node), is_fact=True)
        if node.attr == "type" and isinstance(node.value, ast.Attribute | ast.Name):
            return replace(found, of="", is_fact=False)  # of a device
        return replace(found, is_new=found.is_new and node.attr in lists.VIEWS, function=None)

    def _chosen(self, node: ast.IfExp) -> Seen:
        places, facts = self._test(node.test)
        sides = (node.body, node.orelse)
        if facts and len({_bare(one) for one in sides}) > 1:
            self._require_free(node, places, self._facts(node.test, facts))
        self._require_free(node, places, ())
        found = [self._value(one) for one in sides]
        flags = {name: all(getattr(one, name) for one in found) for name in ("is_new", "is_plain")}
        return replace(Seen().joined(found), **flags)

    def _comprehension(self, node: ast.ListComp | ast.GeneratorExp | ast.DictComp) -> Seen:
        before, self._frame = self._frame, Frame({}, self._frame, self._frame.shared)
        for one in node.generators:
            self._loop(one.target, one.iter)
            for test in one.ifs:
                self._require_free(test, *self._test(test))
        parts = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        made = Seen(is_new=True, is_list=not isinstance(node, ast.GeneratorExp))
        found = made.joined([self._value(one) for one in parts])
        self._frame = before
        return found

    def _call(self, node: ast.Call) -> Seen:
        match node.func:
            case ast.Name(id=name):
                return self._call_name(node, name)
            case ast.Attribute(value=ast.Call(func=ast.Name(id="super"))):
                return replace(Seen().joined(self._passed(node)), places=frozenset(), is_new=True)
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
                made = Seen().joined(self._passed(node)).joined([found])
                return made.marked(_result(made.marks))

    def _passed(self, node: ast.Call) -> list[Seen]:
        """The arguments of a call, but those that say where a result lies alone."""
        used = self._used
        self._specific(node)
        name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        given = [self._value(one) for one in node.args]
        if name in MOVES | lists.CASTS:
            given, self._used = [replace(one, uses="") for one in given], used
        elif (
            node.args
            and name.endswith("_like")
            and f"{ast.unparse(node.args[0])}.shape" in self._frame.texts
        ):
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
        node, outer = function
        if isinstance(node, ast.FunctionDef) and self.parts.is_kernel(node):
            return NOTHING
        filled = set(self.filled)
        found = self._called(node, {}, outer)
        self.filled = filled
        return replace(found, places=frozenset(), is_new=False, is_list=False, function=None)

    def _call_name(self, node: ast.Call, name: str) -> Seen:
        found = self._frame.find(name)
        own = self._value(ast.Name(name, ast.Load())).function
        if own is not None:
            return self._own(node, [own], is_method=False)
        given = Seen().joined(self._passed(node))
        if found is not None:
            return given.joined([found, Seen(marks=_result(given.marks | found.marks))])
        if name in self.parts.aliases:
            paths = self.parts.aliases[name]
            return Seen(is_new=True).joined(self._called_module(node, one) for one in paths)
        if name in self.parts.class_names:
            return replace(given, places=frozenset(), is_new=True)
        if name in TEXTS or (name in lists.READS and given.is_rounded):
            return Seen(of=ast.unparse(node), is_fact=True)
        if name in lists.SIZES:
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
            raise kept_wrongly(node, "calls setattr in a call")
        if name in ("list", "dict", "set", "sorted", "tuple"):
            return replace(given, is_new=True, is_list=True)
        return replace(given, places=frozenset())

    def _call_attribute(self, node: ast.Call, func: ast.Attribute) -> Seen:
        name, owner = func.attr, func.value
        if (paths := self._paths(func)) and name not in lists.BUILDING:
            found = Seen().joined(self._called_module(node, one) for one in paths)
            return replace(found, is_new=name not in lists.VIEWS)
        if name == "apply" and isinstance(owner, ast.Name) and owner.id in self.parts.class_names:
            return self._own(node, self._methods("forward"), is_method=True)
        if name in self.methods and name != "forward":
            self._value(owner)
            return self._own(node, self._methods(name), is_method=True)
        if name in lists.CHANGING:
            given = Seen().joined(self._passed(node))
            if not self._is_first:
                self._mutate(given.uses or self._control)
            place = self._place(owner)
            if not self._is_first or (place and not self._is_made(place)):
                self._change(node, owner)
            return replace(given, is_new=True) if self._is_first else NOTHING
        if name in lists.BUILDING and not self._is_first and name != "eval":
            raise kept_wrongly(node, f"calls {ast.unparse(func)} in a call")
        found = self._value(func)
        if name in lists.ASKED or name == "stride":
            is_fact = name != "stride"
            return Seen(of=ast.unparse(node), is_fact=is_fact) if found.of else found
        given = self._passed(node)
        if name in ("get", "index", "count", "__getitem__"):
            self._decided(node, given)
        owned = self._value(owner)
        if name.startswith("new_"):
            self._used = Seen().joined(given).uses
        if name in lists.KINDS_ASKED and found.of and not given:
            return found
        is_part = isinstance(owner, ast.Name) and owner.id == "self"
        marks = self._marks(node, "" if is_part else name, owned, given)
        if name in ("to", "cuda", "type"):
            return replace(owned, is_new=False, marks=marks)
        if name in lists.READS and owned.is_rounded and name not in lists.CASTS:
            return Seen(of=ast.unparse(node), is_fact=True)
        if name == "format":
            return Seen(of="a text that is made", is_fact=True)
        if name == "join":
            return replace(Seen().joined(given), places=frozenset())
        made = Seen(of=owned.of, is_fact=owned.is_fact).joined(given)
        is_typed = name == "view" and any(TYPE in one.marks for one in given)
        if is_typed and owned.marks & UNTYPED:
            made = Seen(of=ast.unparse(node))  # its shape tells the type
        is_view = name in lists.VIEWS or name in ("values", "items", "keys", "copy")
        places = owned.places if is_view else frozenset[str]()
        return replace(made, places=places, is_new=not is_view or owned.is_new, marks=marks)

    def _called_module(self, node: ast.Call, path: str) -> Seen:
        name, given = path.rpartition(".")[2], self._passed(node)
        known = self._of_module(node, path)
        if known.of or name in lists.OF_CARD:
            return replace(known, of=known.of and ast.unparse(node))
        if name in ("device", "get_active_torch_device"):
            return Seen(marks=frozenset({PLACE}))
        made, fact = Seen().joined(given), Seen(of=ast.unparse(node), is_fact=True)
        made = replace(made, places=made.places if name in lists.VIEWS else frozenset())
        written = [one for one in given[1:] if self._may_change(one)]
        if path.startswith(("numpy.", "copy.")) and written and not self._is_first:
            raise kept_wrongly(node, f"hands {path} what it may write to")
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
        asked = self._specific(node)
        types = [one for one in (*others, *asked.values()) if TYPE in one.marks]
        odd = {MADE} if any(one.of for one in types) else set[str]()
        marks = own.marks - {TYPE}
        given = Seen().joined(others).marks - {TYPE}
        if name in lists.FACTORIES:
            is_whole = name in lists.WHOLE and BROKEN not in marks | given
            is_typed = TYPE in asked.get("dtype", NOTHING).marks
            is_placed = PLACE in asked.get("device", NOTHING).marks
            kept = OWN if is_typed and is_placed else FRESH
            return frozenset({kept, *[BROKEN][: not is_whole]}) | odd
        if name in lists.CASTS and (types or name not in ("to", "type", "type_as")):
            marks -= {MADE}
        elif name in lists.SIZES:
            marks = marks.difference(MARKS)
        elif (
            name in lists.COMPUTED - lists.VIEWS
            and not name.startswith("new_")
            and name[-5:] != "_like"
        ):
            is_light = KINDS.get(name, Kind.COMBINE) is Kind.COMBINE  # the policy lets pass a few
            more = {MADE, *[BROKEN][: name not in lists.WHOLE]} if is_light else set[str]()
            marks = _result(marks | given) | more
        elif name not in lists.VIEWS | lists.CASTS:
            marks = _result(marks | given)
        return marks | odd | ({OWN} if name == "cpu" else set[str]())

    def _paths(self, node: ast.Attribute) -> list[str]:
        """The whole names of a module's attribute; none for that of a value."""
        return self.parts.paths(node, is_local=lambda name: self._frame.find(name) is not None)


def _lasting(node: Function) -> Names:
    """Arguments with a list or a dict as their default."""
    given = node.args
    names = [*given.posonlyargs, *given.args]
    values = [*[None] * (len(names) - len(given.defaults)), *given.defaults, *given.kw_defaults]
    return {
        one.arg: Seen(places=frozenset({f"{one.arg}.default"}))
        for one, made in zip([*names, *given.kwonlyargs], values, strict=True)
        if made and any(isinstance(part, ast.List | ast.Dict) for part in walk(made))
    }


def _result(marks: frozenset[str]) -> frozenset[str]:
    """Marks of what is computed of values with these."""
    return marks | {MADE} if marks & CONSTANT else marks


def _is_asking(kernel: ast.FunctionDef) -> bool:
    """True for a kernel that compares types."""
    tests = (node for node in walk(kernel) if isinstance(node, ast.Compare))
    names = {getattr(node, "attr", "") for test in tests for node in walk(test)}
    return not names.isdisjoint(("dtype", "element_ty", "primitive_bitwidth"))


def _ends(node: ast.AST) -> str:
    """The name that it is or ends with; "" for none."""
    return getattr(node, "attr", getattr(node, "id", ""))


def _below(node: ast.AST) -> list[ast.expr]:
    found = [n for n in ast.iter_child_nodes(node) if isinstance(n, ast.expr | ast.keyword)]
    return [one.value if isinstance(one, ast.keyword) else one for one in found]


def _bare(node: ast.expr) -> str:
    """A value without what puts it right: `x` for `x.contiguous()`."""
    match node:
        case ast.Call(func=ast.Attribute(value=one, attr=name)) if name in MOVES:
            return _bare(one)
    return ast.unparse(node)


def _are_one(node: ast.If) -> bool:
    """True if both sides return the same value, one of them put right."""
    match node.body, node.orelse:
        case [ast.Return(value=ast.expr() as one)], [ast.Return(value=ast.expr() as other)]:
            return _bare(one) == _bare(other)
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


def kept_wrongly(node: ast.AST, words: str) -> Refused:
    return Refused(node, f"host code {words}; {KEPT_WORDS}")


def told_by(node: ast.expr) -> set[str]:
    """Texts of values that tell what an expression does."""
    found = {ast.unparse(node)}
    func = node.func if isinstance(node, ast.Call) else None
    if isinstance(func, ast.Attribute) and func.attr in lists.SIZES:
        found.add(f"{ast.unparse(func.value)}.shape")
    return found


def without(texts: frozenset[str], word: re.Pattern[str]) -> frozenset[str]:
    return frozenset(one for one in texts if not word.search(one))


def is_named(place: str) -> bool:
    """True if names lead to a place: `self.x[n]`."""
    return bool(re.search(r"[A-Za-z_]", re.sub(r"'[^']*'", "", place.partition("[")[2])))


def root_of(place: str) -> str:
    return place.partition("[")[0]
