"""Family `elementwise`: a chain over all elements, plain or added to its input, on a 1-D grid."""

from __future__ import annotations

from random import Random

from forge.data.families.layout import Family, answer_source, problem_source
from forge.data.families.ops import Chain, is_sound, last_name, torch_lines, triton_lines
from forge.data.families.sizes import Scale, Sizes, flat_sizes, product

_BLOCK = {Scale.SMALL: 256, Scale.GPU: 1024}
"""Elements per program; fewer than 1000 elements need at most four programs."""
_RESULT = {"plain": "{}", "residual": "x + {}"}
"""Result from the chain's last variable, the same in reference and kernel."""


class Elementwise(Family):
    """A family whose kernels process a block of elements per program."""

    def draw_sizes(self, rng: Random, *, scale: Scale) -> Sizes:
        return flat_sizes(rng, scale=scale)

    def render_problem(self, variant: str, chain: Chain, *, sizes: Sizes) -> str:
        result = _RESULT[variant].format(last_name(chain))
        return problem_source(
            sizes,
            product="SIZE",
            inputs=["torch.randn(SIZE)"],
            forward=[*torch_lines(chain), f"return {result}"],
        )

    def render_answer(
        self, variant: str, chain: Chain, *, sizes: Sizes | None = None, scale: Scale = Scale.SMALL
    ) -> str:
        block = _BLOCK[scale]
        if sizes is None:
            n, grid, ask, passed = "n", f"triton.cdiv(n, {block})", ["n = x.numel()"], ", n"
        else:
            n, grid, ask, passed = str(product(sizes)), str(-(-product(sizes) // block)), [], ""
        result = _RESULT[variant].format(last_name(chain))
        return answer_source(
            f"x_ptr, out_ptr{passed}",
            kernel=[
                "cols = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)",
                f"mask = cols < {n}",
                "x = tl.load(x_ptr + cols, mask=mask, other=0.0)",
                *triton_lines(chain),
                f"tl.store(out_ptr + cols, {result}, mask=mask)",
            ],
            forward=[
                *ask,
                "out = torch.empty_like(x)",
                f"kernel[({grid},)](x, out{passed}, BLOCK={block})",
            ],
        )

    def accepts(self, variant: str, chain: Chain) -> bool:
        """True for a sound chain, except `x - x`."""
        return is_sound(chain) and not (variant == "residual" and chain == ("neg",))


ELEMENTWISE = Elementwise(name="elementwise", variants=tuple(_RESULT), outer="HEADS")
