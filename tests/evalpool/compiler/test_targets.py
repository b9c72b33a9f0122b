"""`judge.target`: candidates are captured and compiled for a card that this machine lacks."""

from pathlib import Path

import pytest

from forge.adapters.pools import JudgeSettings
from forge.config.load import load_experiment
from forge.errors import ConfigError
from forge.evalpool import cards
from forge.evalpool.cards import require_target
from forge.evalpool.judge.compiler.binary import Binary
from forge.evalpool.judge.compiler.compile import Compiler
from forge.evalpool.judge.trial.cpu_trial import assumed_target
from forge.runner.plan.plan import plan
from tests.evalpool.capture.capturing import HEADER, captured

QUICKSTART = Path(__file__).parents[3] / "experiments" / "quickstart.toml"
PRODUCT = (
    HEADER
    + """
@triton.autotune(
    [triton.Config({{"waves_per_eu": 2, "matrix_instr_nonkdim": {size}, "kpack": 2}}, num_warps=1)],
    key=[],
)
@triton.jit
def product(a, b, c, S: tl.constexpr):
    i = tl.arange(0, S)
    at = i[:, None] * S + i[None, :]
    tl.store(c + at, tl.dot(tl.load(a + at), tl.load(b + at)))

class ModelNew(torch.nn.Module):
    def forward(self, a, b):
        card = torch.cuda.get_device_properties()
        assert (card.multi_processor_count, card.warp_size) == (304, 64)
        assert card.gcnArchName == "gfx942"
        assert card.shared_memory_per_block_optin == 64 << 10
        assert triton.runtime.driver.active.get_current_target().backend == "hip"
        c = torch.empty(64, 64, device=a.device)
        product[(1,)](a, b, c, S=64)
        return c
"""
)


def compiled(folder: Path, compiler: Compiler, *, size: int) -> Binary:
    """A product of halves for an MI300X, by matrix instructions of this many rows."""
    halves = ("float16", [64, 64])
    program = captured(
        folder, PRODUCT.format(size=size), inputs=[halves] * 2, target=assumed_target("hip:gfx942")
    )
    assert program.target == "hip:gfx942:64"
    (kernel,) = program.kernels
    options = kernel.options
    found = (options.waves_per_eu, options.matrix_instr_nonkdim, options.kpack)
    assert found == (2, size, 2)
    (made,) = compiler.compile(program.kernels, program.target)
    assert isinstance(made, Binary), made
    return made


def test_an_mi300x_is_a_target_with_its_own_options(tmp_path: Path, compiler: Compiler) -> None:
    small, large = (compiled(tmp_path, compiler, size=size) for size in (16, 32))
    assert small.code != large.code


def test_triton_itself_says_for_which_cards_it_can_compile() -> None:
    require_target("hip:gfx942")
    with pytest.raises(
        ConfigError, match=r'judge\.target: found "hip:gfx803".*hip:gfx942'
    ) as found:
        require_target("hip:gfx803")
    assert "\n" not in str(found.value)


def test_plans_and_commands_refuse_a_target_that_triton_lacks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cards, "_fault", lambda target: "no such card")
    experiment = load_experiment(QUICKSTART, overrides=["judge.target=hip:gfx90a"])
    with pytest.raises(ConfigError, match=r"judge\.target: .*no such card"):
        plan(experiment)
    with pytest.raises(ConfigError, match=r"--target: .*no such card"):
        JudgeSettings(target="hip:gfx90a").table()
    with pytest.raises(ConfigError, match=r'judge\.target: found "mi300x"; cuda:NUMBER'):
        JudgeSettings(target="mi300x").table()
    with pytest.raises(ConfigError, match="--target hip:gfx90a: belongs to --device cpu"):
        JudgeSettings(target="hip:gfx90a", device="cuda").gpus()
