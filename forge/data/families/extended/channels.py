"""Family `channel_norm`: a norm of [BATCH, CHANNELS, LEN] with weight and bias, then a chain.

    group_norm      groups of GROUP channels
    instance_norm   each channel by itself
    batch_norm      with the running mean and variance of each channel

A program holds one group, or one channel.
"""

from __future__ import annotations

from random import Random

from forge.data.families.layout import (
    WIDE_LAUNCH,
    Family,
    Parameters,
    answer_source,
    problem_source,
)
from forge.data.families.ops import Chain, last_name, torch_lines, triton_lines
from forge.data.families.sizes import Scale, Sizes, image_sizes, next_power_of_2, product

_GROUP = 2
"""Channels of a group."""
_F = "torch.nn.functional."
_CALLS = {
    "group_norm": f"group_norm(x, x.shape[1] // {_GROUP}, self.w, self.b)",
    "instance_norm": "instance_norm(x, weight=self.w, bias=self.b)",
    "batch_norm": "batch_norm(x, self.m, self.v, self.w, self.b)",
}
_LEARNED = (
    "self.w = torch.nn.Parameter(torch.ones(c))",
    "self.b = torch.nn.Parameter(torch.zeros(c))",
)
_RUNNING = (
    'self.register_buffer("m", torch.zeros(c))',
    'self.register_buffer("v", torch.ones(c))',
)


class ChannelNorm(Family):
    """A family whose kernels normalise a group of channels per program."""

    def draw_sizes(self, rng: Random, *, scale: Scale) -> Sizes:
        """Batch, channels and the factors of a channel's length."""
        num = _GROUP * (rng.choice((1, 2)) if scale is Scale.SMALL else rng.randrange(8, 33))
        image = image_sizes(rng, scale=scale, batches=(1, 2), num_channels=2 * num)
        return {"BATCH": image["BATCH"], "CHANNELS": num, **image}

    def render_problem(self, variant: str, chain: Chain, *, sizes: Sizes) -> str:
        """Source of the problem."""
        return problem_source(
            sizes,
            product="LEN",
            inputs=["torch.randn(BATCH, CHANNELS, LEN)"],
            forward=[
                f"x = {_F}{_CALLS[variant]}",
                *torch_lines(chain),
                f"return {last_name(chain)}",
            ],
            parameters=_parameters(variant),
        )

    def render_answer(
        self, variant: str, chain: Chain, *, sizes: Sizes | None = None, scale: Scale = Scale.SMALL
    ) -> str:
        """Source of the answer."""
        group = _GROUP if variant == "group_norm" else 1
        if sizes is None:
            c, n, passed, size = "ch", "n", ", ch, n", "n" if group == 1 else f"({group} * n)"
            ask, block = ["b, ch, n = x.shape"], f"triton.next_power_of_2({size.strip('()')})"
            rows = "b * ch" if group == 1 else f"b * ch // {group}"
        else:
            c, n, passed, ask = str(sizes["CHANNELS"]), str(product(sizes)), "", []
            size, rows = (
                str(group * product(sizes)),
                str(sizes["BATCH"] * sizes["CHANNELS"] // group),
            )
            block = str(next_power_of_2(group * product(sizes)))
        channel = f"row % {c}" if group == 1 else f"(row * {group} + cols // {n}) % {c}"
        operands = ("w", "b", *("mv" if variant == "batch_norm" else ""))
        pointers = ", ".join(f"{name}_ptr" for name in operands)
        passing = ", ".join(f"self.{name}" for name in operands)
        options = WIDE_LAUNCH if scale is Scale.GPU else ""
        return answer_source(
            f"x_ptr, {pointers}, out_ptr{passed}",
            kernel=[
                "row = tl.program_id(0)",
                "cols = tl.arange(0, BLOCK)",
                f"mask = cols < {size}",
                f"x = tl.load(x_ptr + row * {size} + cols, mask=mask, other=0.0)",
                f"at = {channel}",
                *_norm_lines(variant, size),
                f"x = x * {_per_channel('w', group)} + {_per_channel('b', group)}",
                *triton_lines(chain),
                f"tl.store(out_ptr + row * {size} + cols, {last_name(chain)}, mask=mask)",
            ],
            forward=[
                *ask,
                "out = torch.empty_like(x)",
                (f"kernel[({rows},)](x, {passing}, out{passed}, BLOCK={block}{options})"),
            ],
            parameters=_parameters(variant),
        )


def _parameters(variant: str) -> Parameters:
    running = _RUNNING if variant == "batch_norm" else ()
    return Parameters(args=", c", lines=(*_LEARNED, *running), init_inputs="CHANNELS")


def _per_channel(name: str, group: int) -> str:
    """The channel's value: one for a program, or one for each element of a group."""
    return f"tl.load({name}_ptr + at{'' if group == 1 else ', mask=mask, other=0.0'})"


def _norm_lines(variant: str, size: str) -> list[str]:
    if variant == "batch_norm":
        return [
            "m = tl.load(m_ptr + at)",
            "v = tl.load(v_ptr + at)",
            "x = (x - m) * tl.rsqrt(v + 1e-5)",
        ]
    return [
        f"x = tl.where(mask, x - tl.sum(x, axis=0) / {size}, 0.0)",
        f"x = x * tl.rsqrt(tl.sum(x * x, axis=0) / {size} + 1e-5)",
    ]


CHANNEL_NORM = ChannelNorm(name="channel_norm", variants=tuple(_CALLS), outer="BATCH")
