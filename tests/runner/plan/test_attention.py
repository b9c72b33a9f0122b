"""`attention` is resolved with a reason; flash that cannot work is refused before the start."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from forge.config.load import load_experiment
from forge.config.schema import GrpoStage, ModelTable, SftStage
from forge.errors import ConfigError, MachineError
from forge.process.devices import Gpu, Vendor
from forge.runner.plan import requirements
from forge.runner.plan.attention import attention_reasons, resolve_attention
from forge.runner.plan.placement import Placement
from forge.runner.plan.prefix_sharing import share_prefixes
from forge.runner.stages.trainer import resolve_auto

if TYPE_CHECKING:
    from pathlib import Path

    from forge.config.schema import Experiment

CARD = Gpu(
    vendor=Vendor.NVIDIA, index=0, uuid="GPU-0", name="H200", memory_bytes=140 << 30,
    free_bytes=140 << 30, capability=(9, 0),
)  # fmt: skip
OLD = replace(CARD, name="V100", capability=(7, 0))
SFT = SftStage(kind="sft", steps=1, learning_rate=1e-6)
PACKED = SFT.model_copy(update={"packing": True})
GRPO = GrpoStage(kind="grpo", steps=1, learning_rate=1e-6)


def experiment(at: Path, *lines: str) -> Experiment:
    stage = ("[[stage]]", 'kind = "sft"', "steps = 1", "learning_rate = 1e-4")
    model = ('name = "x"', "[model]", 'path = "Qwen/Qwen3-0.6B"')
    (at / "x.toml").write_text("\n".join((*model, *stage, *lines)))
    return load_experiment(at / "x.toml")


@pytest.mark.parametrize(
    ("stage", "gpus", "is_installed", "name"),
    [
        (PACKED, [CARD], True, "flash"),
        (PACKED, [CARD], False, "auto"),
        (PACKED, [CARD, OLD], True, "auto"),
        (PACKED, [], True, "auto"),
        (SFT, [CARD], True, "auto"),
        (GRPO, [CARD], True, "auto"),
        (SFT.model_copy(update={"attention": "flash"}), [CARD], False, "flash"),
        (PACKED.model_copy(update={"attention": "sdpa"}), [CARD], True, "sdpa"),
    ],
)
def test_auto_is_flash_for_packed_rows_where_it_can_be_used(
    stage: SftStage | GrpoStage, gpus: list[Gpu], is_installed: bool, name: str
) -> None:
    assert resolve_attention(stage, gpus=gpus, is_installed=is_installed) == name


@pytest.mark.parametrize(
    ("lines", "gpus", "words"),
    [
        ((), [], None),
        (("packing = true",), [], "sdpa (the trainer on the CPU); it computes packed rows in full"),
        (("packing = true",), [OLD], "sdpa (a GPU older than Ampere); it computes"),
        (("packing = true",), [CARD], "flash, if flash_attn is installed there"),
        (("packing = true", 'attention = "sdpa"'), [CARD], "sdpa (set by the stage); it computes"),
        (("packing = true", 'attention = "flash"'), [CARD], None),
    ],
)
def test_the_plan_says_where_packing_is_slow(
    lines: tuple[str, ...], gpus: list[Gpu], words: str | None, tmp_path: Path
) -> None:
    found = list(attention_reasons(experiment(tmp_path, *lines), gpus=gpus, is_here=False))
    assert len(found) == (words is not None)
    for line in found:
        assert line.startswith("stage.0.attention = ")
        assert words is not None
        assert words in line


@pytest.mark.parametrize(
    ("gpus", "words"),
    [((), "with the trainer on the CPU"), ((OLD,), "with a GPU older than Ampere")],
)
def test_flash_is_refused_where_no_package_would_help(
    gpus: tuple[Gpu, ...], words: str, tmp_path: Path
) -> None:
    asked = experiment(tmp_path, 'attention = "flash"')
    match = rf'^stage\.0\.attention: found "flash" {words}; "auto" or "sdpa"$'
    with pytest.raises(ConfigError, match=match):
        requirements.require_trainer(asked, Placement(train=gpus), is_here=True)


def test_flash_needs_its_package_on_this_machine_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, cards = experiment(tmp_path, 'attention = "flash"'), Placement(train=(CARD,))
    real = importlib.util.find_spec
    monkeypatch.setattr(
        requirements.importlib.util,
        "find_spec",
        lambda name: None if name == "flash_attn" else real(name),
    )
    requirements.require_trainer(asked, cards, is_here=False)
    with pytest.raises(MachineError, match=r'stage 0: attention = "flash" needs flash_attn, which'):
        requirements.require_trainer(asked, cards, is_here=True)


def test_a_named_attention_turns_shared_prefixes_off_and_both_together_are_refused(
    tmp_path: Path,
) -> None:
    model = ModelTable(path="Qwen/Qwen3-0.6B")
    flash = GRPO.model_copy(update={"attention": "flash"})
    assert share_prefixes(GRPO, model, gpus=[CARD]).is_on
    assert not share_prefixes(flash, model, gpus=[CARD]).is_on
    stage = resolve_auto(flash, Placement(train=(CARD,)), model=model, model_dir=tmp_path)
    assert (stage.attention, stage.share_prefixes) == ("flash", False)
    text = 'found "flash" with share_prefixes = true'
    both = (
        "[[stage]]", 'kind = "grpo"', "steps = 1", "learning_rate = 1e-6",
        'attention = "flash"', "share_prefixes = true",
    )  # fmt: skip
    with pytest.raises(ConfigError, match=text):
        experiment(tmp_path, *both)
