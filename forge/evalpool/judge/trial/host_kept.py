# pyright: strict
"""Holds what host code keeps from one call to the next, and says what it may keep.

Two calls of `forward` with the same tensors must do the same, whatever was called before. A class
may keep what its constructor makes. What a call keeps, on `self` or at the top, is a cache: a
branch that asks for it does nothing but fill it, and its value depends on parameters alone, or on
nothing else but what the branch compares or the key that it is kept under:

    if self.packed is None:
        self.packed = self.weight.t().contiguous()
    if x.shape not in self.spaces:
        self.spaces[x.shape] = torch.empty(x.shape, dtype=x.dtype, device=x.device)

A type and a device may be the first call's: a problem has one. So is the size of a buffer that
grows. `host_flow.py` follows the code; what `capture` can see, a change of an argument or of a
module, it refuses there.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias

from forge.evalpool.judge.trial.host_parts import Refused

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from forge.evalpool.judge.trial.host_parts import Parts

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
    """A value, as far as it matters.

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
        """A value that is made of this one and of others."""
        made = [self, *others]
        return replace(
            self,
            of=max((one.of for one in made), key=lambda of: (of != "", not of.endswith(DEVICE))),
            is_fact=any(one.is_fact for one in made),
            places=frozenset[str]().union(*(one.places for one in made)),
            uses=next((one.uses for one in made if one.uses), ""),
            is_plain=all(one.is_plain for one in made),
            marks=frozenset[str]().union(*(one.marks for one in made)),
        )

    def marked(self, marks: frozenset[str]) -> Seen:
        """The same value with these marks alone."""
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
OWN, FRESH, LAYER, MADE, MIXED, TYPE, PLACE, BROKEN = MARKS = (
    *("own", "fresh", "layer", "made", "mixed", "type", "place", "broken"),
)
"""Marks: of a tensor that host code makes; of one without a type or a place; of a new parameter or
layer; of what an operation gives, whose type may be the process's; of two arguments in one, whose
type is the process's if one is a number; of a type; of a place; of what may be no whole number."""
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


class Kept:
    """The places of one source that last, in the call that is followed."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.functions = {one.name: one for one in parts.functions}
        self.methods: dict[str, list[ast.FunctionDef]] = {}
        for one in parts.classes:
            for node in one.body:
                if isinstance(node, ast.FunctionDef):
                    self.methods.setdefault(node.name, []).append(node)
        self.changed = set[str]()
        """Roots of the places that some call changes."""
        self.filled = set[str]()
        """Places that this call has filled."""
        self._held: Names = {}
        """Values that constructors and statements at the top have kept, by the roots of places."""
        self._parts = set[str]()
        """Places that some call changes."""
        self._caches = set[str]()
        """Places that a branch has filled, if no earlier call has."""
        self._fills = set[str]()
        """Roots of the places that a branch asks for."""
        self._put: dict[str, str] = {}
        """Arguments that kept values depend on, by the roots of their places."""
        self._asked: list[tuple[set[str], list[Seen]]] = []
        """Places and facts that a test asks for."""
        self._is_first = False
        """True within a constructor."""
        self._is_top = False
        """True for statements at the top."""
        self._key = Key()
        self._control = ""
        """An argument that decides if the statement runs."""
        self._mutated = ""
        """An argument that was put into a value of this call."""
        self._frame = Frame({})

    def _found(self) -> tuple[set[str], set[str], dict[str, str]]:
        """All that is known of the places that calls change."""
        return self.changed | self._parts, {*self._fills}, {**self._put}

    def _hold(self, root: str, value: Seen) -> None:
        """Notes a value that lasts."""
        told = Seen(of=value.of, is_fact=value.is_fact, marks=value.marks)
        self._held[root] = self._held.get(root, NOTHING).joined([told])

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
            parts = [n for one in found for n in ast.walk(one) if isinstance(n, ast.Subscript)]
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
            case _:
                pass
        return frozenset(), Key()

    def _value(self, node: ast.expr) -> Seen:
        """The value of an expression."""
        raise NotImplementedError

    def _texts(self, node: ast.expr) -> frozenset[str]:
        """Texts of an expression, and of the values that it tells."""
        found = frozenset({ast.unparse(node)})
        match node:
            case ast.Name(id=name):
                return found | self._frame.parts.get(name, frozenset())
            case ast.Tuple(elts=parts) | ast.Call(func=ast.Name(id="tuple"), args=parts):
                return found.union(*map(self._texts, parts))
            case _:
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

    def _require_filled(self, node: ast.AST, places: Iterable[str]) -> None:
        for place in sorted(places):
            if not self._is_filled(place):
                raise Refused(node, f"host code asks for {place} and does not set it; {KEPT_WORDS}")

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
            case ast.Subscript(value=owner, slice=key):
                place = self._place(owner)
                return None if place is None else f"{place}[{ast.unparse(key)}]"
            case ast.Call(func=ast.Attribute(value=owner, attr="get"), args=[key, *_]):
                place = self._place(owner)
                return None if place is None else f"{place}[{ast.unparse(key)}]"
            case ast.Call(func=ast.Name(id="getattr" | "hasattr"), args=[owner, name, *_]):
                is_own = isinstance(owner, ast.Name) and owner.id == "self"
                text = name.value if isinstance(name, ast.Constant) else "*"
                return f"self.{text}" if is_own else None
            case _:
                return None

    def _is_filled(self, place: str) -> bool:
        """True if this call has set it. Of a cache that may be an earlier call's, parts that some
        call sets are not what they were at first."""
        return any(
            place == one
            or (place.startswith(f"{one}[") and not (one in self._caches and self._has_parts(one)))
            for one in self.filled
        )

    def _has_parts(self, place: str) -> bool:
        return any(one.startswith(f"{place}[") for one in self._parts)

    def _is_lasting(self, place: str) -> bool:
        """True if calls may change what is there. A tensor in it is seen by the judge."""
        root = root_of(place)
        if root.removeprefix("self.") in self.parts.tensors:
            return False
        return root in self.changed and not self._is_filled(place) and not self._is_made(root)

    def _is_made(self, root: str) -> bool:
        """True for an attribute of the instance that this constructor makes, and for a name that a
        statement at the top binds."""
        is_own = root.startswith("self.") and root.removeprefix("self.") not in self.parts.shared
        return self._is_first and (is_own or self._is_top)

    def _read(self, node: ast.AST, place: str) -> None:
        if not self._is_lasting(place):
            return
        if self._asked:
            self._asked[-1][0].add(place)
            return
        raise Refused(node, f"host code reads {place}, which an earlier call set; {KEPT_WORDS}")

    def _require_unkept(self, node: ast.Attribute, place: str) -> None:
        """Refuses an attribute of another object than `self` that a call sets: there may be several
        such objects. Methods of its class may read it."""
        if place.removeprefix("self.") not in self.parts.tensors:
            name = ast.unparse(node)
            raise Refused(node, f"host code reads {name}, which an earlier call set; {KEPT_WORDS}")

    def _set(self, node: ast.AST, place: str, value: Seen) -> None:
        root = root_of(place)
        if root.removeprefix("self.") in self.parts.tensors and place != root:
            return
        if self._is_made(root):
            self._hold(root, value)
            self.filled.add(place)
            return
        if value.of and not (value.key and value.of.endswith(DEVICE)):
            raise Refused(node, f"host code keeps {value.of} in {place}; {KEPT_WORDS}")
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
        if place is not None and self._is_made(root_of(place)):
            return
        if place is not None and root_of(place).removeprefix("self.") in self.parts.tensors:
            return
        if place is None and self._is_new(target):
            return
        name = ast.unparse(target)
        raise Refused(
            node, f"host code changes {name}, which may last from call to call; {KEPT_WORDS}"
        )

    def _is_new(self, target: ast.expr) -> bool:
        """True for what this call has made, and no call around it."""
        while isinstance(target, ast.Subscript | ast.Attribute | ast.Call):
            target = target.func if isinstance(target, ast.Call) else target.value
        name = target.id if isinstance(target, ast.Name) else ""
        return self._frame.names.get(name, NOTHING).is_new


def without(texts: frozenset[str], word: re.Pattern[str]) -> frozenset[str]:
    return frozenset(one for one in texts if not word.search(one))


def is_named(place: str) -> bool:
    """True if names lead to a place: `self.x[n]`."""
    return bool(re.search(r"[A-Za-z_]", re.sub(r"'[^']*'", "", place.partition("[")[2])))


def root_of(place: str) -> str:
    return place.partition("[")[0]
