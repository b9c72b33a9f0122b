"""Configuration objects that constructors take: small values for the fields that a class reads."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forge.data.harvest.closure import Closure

CONFIGURATION = "_configuration"
"""Name of the call that `arguments.constructor_call` makes an object of."""
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


def configuration(closure: Closure, parameter: str) -> ast.Call | None:
    """A call with the fields that the definitions read of a parameter, that of the width first;
    None if the parameter is no configuration or none of its fields is read."""
    if not PARAMETER.fullmatch(parameter):
        return None
    names = sorted(
        set(_fields(closure, parameter)), key=lambda n: (not WIDTH_FIELD.fullmatch(n), n)
    )
    if not names:
        return None
    keywords = [ast.keyword(name, ast.parse(_value(name), mode="eval").body) for name in names]
    return ast.Call(func=ast.Name(CONFIGURATION, ast.Load()), args=[], keywords=keywords)


def _fields(closure: Closure, parameter: str) -> Iterator[str]:
    for definition in closure.definitions():
        for node in ast.walk(definition):
            match node:
                case ast.Attribute(value=ast.Name(id=owner), attr=name) if owner == parameter:
                    yield name
                case ast.Attribute(value=ast.Attribute(attr=owner), attr=name) if (
                    owner == parameter
                ):
                    yield name
                case _:
                    pass


def _value(name: str) -> str:
    return next((text for pattern, text in FIELDS if re.fullmatch(pattern, name)), "16")
