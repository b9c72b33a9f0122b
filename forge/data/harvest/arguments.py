"""Arguments of constructors and of forward as lists of expressions, in the order of parameters.

`get_init_inputs` returns positional arguments, or `[[...], {...}]` where a named one cannot be
given by position. A configuration object becomes a dict, and the constructor makes an object of it.
Where nobody states arguments they are guessed: from defaults, annotations, names, docstrings, and
from calls with literal arguments in the tree's tests and `__main__` blocks.

A guess has constructor arguments and inputs; a sandbox finds the first that runs, so guesses begin
with the likeliest. `calls_in` collects what tests say. A configuration object has small values for
the fields that a class reads.
"""

from __future__ import annotations

import ast
import keyword
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, product
from typing import Any

from forge.data.harvest.closure import TOO_DEEP, Closure, NotSelfContained, copied, globals_of
from forge.data.harvest.records import Found, Rejected

MAX_GUESSES = 12
WIDTH = 16
"""Channels or features where nothing says how many."""
BY_NAME: tuple[tuple[str, str], ...] = (
    (r"eps|epsilon", "1e-05"),
    (r"(.*_)?(dropout|drop|drop_rate|drop_prob|drop_path|p|rate|prob)", "0.0"),
    (r"(use|with|is|has|return|do|need)_.*|bias|inplace|affine|.*_bias|causal|residual", "True"),
    (r"momentum|alpha|gamma|beta|scale|temperature|slope|weight|.*_scale|.*_ratio", "0.5"),
    (r"kernel|kernel_size|ksize|k|ks|.*_kernel|window|window_size|patch_size", "3"),
    (r"stride|strides|dilation|groups|group|depth|num_layers|n_layers|num_blocks|layers", "1"),
    (r"padding|pad", "1"),
    (r"(num_|n_)?heads?|n_head|num_attention_heads|reduction|ratio|expansion|num_groups", "4"),
    (r"num_classes|n_classes|nclass|classes|vocab_size|num_embeddings|n_vocab", "10"),
    (r"(max_|seq_)(len|length).*|max_position.*|num_patches|seq_len|length", "16"),
    (r"act|act_layer|activation|activation_layer|act_fn|nonlinearity", "nn.GELU"),
    (r"norm|norm_layer|normalization", "nn.LayerNorm"),
)
"""Values of parameters by patterns of their names; all others are numbers of channels."""
CONFIGURATION = "_configuration"
"""Name of the call that `constructor_call` makes an object of."""
PARAMETER = re.compile(r"(\w+_)?(config|cfg)")
WIDTH_FIELD = re.compile(r"(\w+_)?(hidden_size|d_model|embed_dim|n_embd|dim|hidden_dim|width)")
FIELDS: tuple[tuple[str, str], ...] = (
    (WIDTH_FIELD.pattern, "16"),
    (r"(intermediate|ffn|mlp|inner|feed_forward)_(size|dim)|d_ff|\w*ffn_dim|n_inner", "32"),
    (r"(num|n)_(key_value|kv)_heads|num_key_value_heads", "2"),
    (r"(\w+_)?(num|n)?_?(attention_)?heads?|n_head", "4"),
    (r"head_dim|d_kv|\w+_head_dim|kv_channels", "4"),
    (r"\w*hidden_act\w*|\w*activation\w*|act_fn|act", "'gelu'"),
    (r"_attn_implementation\w*", "'eager'"),
    (r"\w*(dropout|drop_rate|drop_path_rate|layerdrop|drop)\w*|\w*jitter\w*", "0.0"),
    (r"\w*eps(ilon)?", "1e-05"),
    (r"initializer_(range|factor)|init_std", "0.02"),
    (r"(is|use|has|add|do|tie|norm|apply|output|return|scale)_\w+|\w*bias|training", "False"),
    (r"layer_scale_init_value|layerscale_value|\w*_(scale|factor|multiplier|scaling)", "0.5"),
    (r"num_hidden_layers|num_layers|n_layer|depth|chunk_size_feed_forward|pretraining_tp", "1"),
    (r"num_(local_)?experts|n_routed_experts", "4"),
    (r"num_experts_per_tok|top_k|num_groups|n_group|topk_group|type_vocab_size", "2"),
    (r"vocab_size|num_labels|num_classes|max_position\w*|n_positions|num_queries", "20"),
    (r"pad_token_id|layer_idx|\w*_token_id", "0"),
    (r"image_size", "16"),
    (r"patch_size|kernel_size|\w*_kernel(_size)?|conv_kernel", "4"),
    (r"num_channels|in_channels|num_mel_bins", "3"),
    (r"rope_theta", "10000.0"),
    (r"stride|\w*_stride", "1"),
)
"""Values of fields by patterns of their names; a field of another name is 16."""
BY_TYPE = {"bool": "False", "float": "0.5"}
NO_VALUE = frozenset({"str", "dict", "Dict", "list", "List", "Callable", "Any"})
"""Annotations of which no value is guessed."""
SHAPES: dict[int, tuple[str, ...]] = {
    4: ("[4, C, 16, 16]",),
    3: ("[4, 16, C]", "[4, C, 16]"),
    2: ("[16, C]",),
    5: ("[2, C, 8, 8, 8]",),
    1: ("[C]",),
}
"""Inputs by their number of axes; C: channels."""
INDICES = re.compile(
    r"(input_)?ids?|idx|index|indices|tokens?|labels?|targets?|positions?|timesteps?"
)
TWO_D = re.compile(r"[Cc]onv2d|[Pp]ool2d|BatchNorm2d|[Pp]ixel|interpolate|\b[Hh], ?[Ww]\b")
_SIZE = r"(?:[A-Za-z_]\w*|\d+|\*)"
SHAPE_WORDS = re.compile(rf"[(\[]\s*({_SIZE}(?:\s*,\s*{_SIZE}){{1,4}})\s*[)\]]")


@dataclass(slots=True)
class Calls:
    """Calls of classes with literal arguments, and shapes of tensors that stand near them."""

    arguments: dict[str, list[ast.Call]] = field(default_factory=dict[str, "list[ast.Call]"])
    shapes: dict[str, list[str]] = field(default_factory=dict[str, "list[str]"])


def calls_in(trees: Iterable[ast.Module]) -> Calls:
    """The calls of functions and `if` blocks of test files and of modules themselves."""
    found = Calls()
    for tree in trees:
        for block in _blocks(tree):
            calls = [one for one in ast.walk(block) if isinstance(one, ast.Call)]
            shapes = [text for one in calls if (text := _shape(one))]
            for one in calls:
                name = one.func.id if isinstance(one.func, ast.Name) else ""
                name = one.func.attr if isinstance(one.func, ast.Attribute) else name
                if name[:1].isupper() and _is_literal(one):
                    known = found.arguments.setdefault(name, [])
                    if all(ast.dump(one) != ast.dump(other) for other in known):
                        known.append(one)
                    near = found.shapes.setdefault(name, [])
                    near += [text for text in shapes if text not in near]
    return found


def guesses(closure: Closure, *, calls: Calls) -> Iterator[str]:
    """Problems of a class with its likeliest arguments. Raises NotSelfContained if a parameter has
    none."""
    name, text = closure.key[1], ast.unparse(closure.definitions[0])
    method, forward = closure.method("__init__"), closure.method("forward")
    if forward is None:
        raise NotSelfContained("no forward of its own")
    constructors: list[Constructed] = [
        constructor_call(
            method, call.args, {one.arg: one.value for one in call.keywords if one.arg}
        )
        for call in calls.arguments.get(name, [])[:3]
    ]
    try:
        constructors.append(_guessed(closure, method))
    except NotSelfContained:
        if not constructors:
            raise
    near = calls.shapes.get(name, [])[:3]
    pairs = product(constructors, [*near, *_shapes(text)])
    for constructed, shape in islice(pairs, MAX_GUESSES):
        inputs = _inputs(forward, shape, width=_width(constructed[0], method))
        yield problem_text(closure, inputs, constructed)


def _guessed(closure: Closure, method: ast.FunctionDef | None) -> Constructed:
    if method is None:
        return constructor_call(None, [], {})
    given = method.args
    required = given.args[1 : len(given.args) - len(given.defaults)]
    named = [
        one for one, value in zip(given.kwonlyargs, given.kw_defaults, strict=True) if value is None
    ]
    positions = [_value(closure, one) for one in required]
    keywords = {one.arg: _value(closure, one) for one in named}
    return constructor_call(method, positions, keywords, config=CONFIGURATION)


def _value(closure: Closure, parameter: ast.arg) -> ast.expr:
    if (made := configuration(closure, parameter.arg)) is not None:
        return made
    said = "" if parameter.annotation is None else ast.unparse(parameter.annotation)
    if NO_VALUE & set(re.findall(r"\w+", said)) or re.search(r"config|cfg|args|opt", parameter.arg):
        raise NotSelfContained("constructor argument without a value", parameter.arg)
    text = _by_name(BY_NAME, parameter.arg.lower(), str(WIDTH))
    text = BY_TYPE.get(said, text)
    return ast.parse(text, mode="eval").body


def configuration(closure: Closure, parameter: str) -> ast.Call | None:
    """A call with the fields that the definitions read of a parameter, that of the width first;
    None if the parameter is no configuration or none of its fields is read."""
    if not PARAMETER.fullmatch(parameter):
        return None
    read = {
        node.attr
        for definition in closure.definitions
        for node in ast.walk(definition)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name | ast.Attribute)
        and getattr(node.value, "id", getattr(node.value, "attr", "")) == parameter
    }
    names = sorted(read, key=lambda name: (not WIDTH_FIELD.fullmatch(name), name))
    keywords = [
        ast.keyword(name, ast.parse(_by_name(FIELDS, name, "16"), mode="eval").body)
        for name in names
    ]
    made = ast.Call(func=ast.Name(CONFIGURATION, ast.Load()), args=[], keywords=keywords)
    return made if names else None


def _by_name(table: Sequence[tuple[str, str]], name: str, usual: str) -> str:
    return next((text for pattern, text in table if re.fullmatch(pattern, name)), usual)


def _shapes(text: str) -> list[str]:
    """Shapes of inputs, those that the code and its docstrings speak of first."""
    ranks = [len(found[1].split(",")) for found in SHAPE_WORDS.finditer(text)]
    order = [rank for rank in ranks if rank in SHAPES]
    order += [4, 3, 2] if TWO_D.search(text) else [3, 2, 4]
    return [shape for rank in dict.fromkeys(order) for shape in SHAPES[rank]]


def _inputs(forward: ast.FunctionDef, shape: str, *, width: int) -> ast.List:
    """A tensor for each parameter of forward without a default."""
    given = forward.args
    required = given.args[1 : len(given.args) - len(given.defaults)]
    sized = re.sub(r"\bC\b", str(width), shape)
    texts = [
        f"torch.randint(0, 10, {sized})" if INDICES.fullmatch(one.arg) else f"torch.rand({sized})"
        for one in required
    ]
    made = ast.parse(f"[{', '.join(texts)}]", mode="eval").body
    assert isinstance(made, ast.List)
    return made


def _width(arguments: ast.expr, method: ast.FunctionDef | None) -> int:
    """The first whole number over 1 among the constructor's arguments, then among their defaults:
    mostly channels."""
    for one in [*ast.walk(arguments), *(method.args.defaults if method else ())]:
        if isinstance(one, ast.Constant) and type(one.value) is int and 1 < one.value <= 4096:
            return one.value
    return WIDTH


def _blocks(tree: ast.Module) -> Iterator[ast.stmt]:
    """Functions and `if` statements at the top level and in classes."""
    for node in tree.body:
        if isinstance(node, ast.If | ast.FunctionDef):
            yield node
        elif isinstance(node, ast.ClassDef):
            yield from (one for one in node.body if isinstance(one, ast.FunctionDef))


def _shape(call: ast.Call) -> str:
    """The literal sizes of a random tensor: `[2, 3, 8, 8]`."""
    if not (isinstance(call.func, ast.Attribute) and call.func.attr in ("rand", "randn", "ones")):
        return ""
    values: Sequence[ast.expr] = call.args
    if len(values) == 1 and isinstance(values[0], ast.List | ast.Tuple):
        values = values[0].elts
    sizes = [one.value for one in values if isinstance(one, ast.Constant)]
    is_whole = sizes and len(sizes) == len(values) and all(type(one) is int for one in sizes)
    return str(sizes) if is_whole else ""


def _is_literal(call: ast.Call) -> bool:
    try:
        for one in (*call.args, *(each.value for each in call.keywords)):
            ast.literal_eval(one)
    except (ValueError, TypeError, SyntaxError, RecursionError):
        return False
    return all(one.arg for one in call.keywords)


CONFIG = "SimpleNamespace"
MOCK = "_mock_config"
"""Call by which paritybench, and KernelBook, make a configuration object."""


Constructed = tuple[ast.expr, list[ast.stmt]]
"""The arguments of a constructor, and the statements that it has to begin with."""


def constructor_call(
    method: ast.FunctionDef | None,
    given: Sequence[ast.expr],
    named: Mapping[str, ast.expr],
    *,
    config: str = "",
) -> Constructed:
    """The list that `get_init_inputs` returns for these arguments; `config` names a function whose
    result is a configuration object with its keywords as fields. Raises NotSelfContained for such
    an object inside of an expression."""
    names = _parameters(method)
    first: list[ast.stmt] = []
    plain: dict[int | str, ast.expr] = {}
    for place, value in [*enumerate(given), *named.items()]:
        plain[place] = copied(value)
        if config and _is_call(value, config):
            assert isinstance(value, ast.Call)
            parameter = place if isinstance(place, str) else (*names, *[""] * len(given))[place]
            is_name = parameter.isidentifier() and not keyword.iskeyword(parameter)
            if value.args or any(one.arg is None for one in value.keywords) or not is_name:
                raise NotSelfContained("configuration object")
            keys: list[ast.expr | None] = [ast.Constant(one.arg) for one in value.keywords]
            plain[place] = ast.Dict(keys=keys, values=[copied(one.value) for one in value.keywords])
            first += ast.parse(f"{parameter} = {CONFIG}(**{parameter})").body
    if config and any(_is_call(one, config) for value in plain.values() for one in ast.walk(value)):
        raise NotSelfContained("configuration object")
    by_name = {name: plain[name] for name in named}
    listed, rest = _by_position(names, [plain[place] for place in range(len(given))], by_name)
    if not rest:
        return listed, first
    keyed = ast.Dict(keys=[ast.Constant(name) for name in rest], values=[*rest.values()])
    return ast.List(elts=[listed, keyed], ctx=ast.Load()), first


def _parameters(method: ast.FunctionDef | None) -> list[str]:
    return [] if method is None else [one.arg for one in method.args.args[1:]]


def _by_position(
    names: Sequence[str], positions: list[ast.expr], named: dict[str, ast.expr]
) -> tuple[ast.List, dict[str, ast.expr]]:
    """Arguments by position, with those named ones that follow them; and the rest."""
    while len(positions) < len(names) and names[len(positions)] in named:
        positions.append(named.pop(names[len(positions)]))
    return ast.List(elts=positions, ctx=ast.Load()), named


def problem_text(closure: Closure, inputs: ast.expr, constructed: Constructed) -> str:
    """The problem of a class with its arguments. Raises NotSelfContained."""
    arguments, first = constructed
    used = globals_of(ast.Expr(arguments)) | globals_of(ast.Expr(inputs))
    closure.require(used - {"torch"})
    text = closure.text(inputs=inputs, arguments=arguments, first=first)
    return f"from types import {CONFIG}\n{text}" if first else text


Given = tuple[Sequence[ast.expr], Mapping[str, ast.expr]]
"""Arguments by position and by name."""


def case_text(closure: Closure, *, made: Given, called: Given) -> str:
    """The problem of a class with arguments of its constructor and of forward, as paritybench has
    them. Raises NotSelfContained."""
    positions, named = [copied(one) for one in called[0]], called[1].items()
    by_name = {name: copied(one) for name, one in named}
    inputs, rest = _by_position(_parameters(closure.method("forward")), positions, by_name)
    if rest:
        raise NotSelfContained("keyword arguments of forward")
    constructed = constructor_call(closure.method("__init__"), *made, config=MOCK)
    return problem_text(closure, inputs, constructed)


def tried(make: Callable[..., Found], *args: Any, origin: str, kind: str) -> Found | Rejected:
    """The problem that a function makes of a candidate, or why it is none."""
    try:
        return make(*args, origin=origin, kind=kind)
    except NotSelfContained as error:
        return Rejected(origin=origin, kind=kind, reason=str(error), detail=error.detail)
    except RecursionError:
        return Rejected(origin=origin, kind=kind, reason=TOO_DEEP)
    except (SyntaxError, ValueError) as error:  # as of a number too long to write
        return Rejected(origin=origin, kind=kind, reason="cannot be written", detail=str(error))


def level_of(tree: ast.Module) -> int:
    """1 for one operation, 2 for a few, 3 for a model: by the calls and operators of all
    `forward` methods and functions."""
    count = 0
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name not in (
            "__init__", "get_inputs", "get_init_inputs",
        ):  # fmt: skip
            counted = (ast.Call, ast.BinOp, ast.UnaryOp)
            count += sum(isinstance(one, counted) for one in ast.walk(node))
    return 1 if count <= 1 else 2 if count <= 8 else 3


def _is_call(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name
