"""Making a random model: a complete directory, the same for the same seed, or an error with the
reason."""

import json
from pathlib import Path

import anyio
import pytest

from forge.config.schema import ModelTable, TinyModel
from forge.data.chat import ChatTemplate
from forge.errors import ChildDied
from forge.runner.plan.shape import count_params, tiny_shape
from forge.train.handle import run_init_model

SIZES = TinyModel(
    hidden_size=32, num_layers=1, num_heads=2, num_kv_heads=1, intermediate_size=64, vocab_size=310
)


def make(at: Path, name: str) -> None:
    anyio.run(
        lambda: run_init_model(
            SIZES, texts_path=at / "texts.jsonl", out_dir=at / name, log_dir=at / "logs", seed=5
        )
    )


@pytest.mark.slow
def test_the_same_seed_makes_the_same_bytes(tmp_path: Path) -> None:
    from forge.train.trainer.model.init_model import make_model

    texts = [f"def f{n}(x):\n    return tl.exp(x)\n" for n in range(40)]
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps(t) + "\n" for t in texts))
    make(tmp_path, "one")
    one, two = tmp_path / "one", tmp_path / "two"
    made = json.loads((tmp_path / "logs" / "init-model.result.json").read_text())
    here = make_model(SIZES.model_dump(), texts=texts, model_dir=two, seed=5)
    names = {p.name for p in one.iterdir()}
    assert names >= {"config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja"}
    for name in names:
        assert (one / name).read_bytes() == (two / name).read_bytes(), name
    assert here == made
    assert ChatTemplate.load(one).vocab_size == made["vocab_size"] <= SIZES.vocab_size
    params = count_params(ModelTable(path=str(two)))
    assert made["num_parameters"] == tiny_shape(SIZES).params == params


@pytest.mark.long
def test_a_failed_init_model_reports_the_reason_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ChildDied, match=r"init-model died .*(.|\n)*FileNotFoundError"):
        make(tmp_path, "none")
    assert not (tmp_path / "none").exists()
