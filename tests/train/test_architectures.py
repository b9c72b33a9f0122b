"""Each architecture of the reference, from its files and back: SFT, an engine that answers, a GRPO
step on these answers, an adapter, an export that plain transformers loads; and packed sequences,
which equal those on their own or are refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from forge.config.schema import GrpoStage, LoraTable, ModelTable, SftStage
from forge.data.chat import ChatTemplate
from forge.errors import ConfigError
from forge.records import Message, Sample
from forge.serve.architectures import why_not_llama
from forge.serve.hf.engine import HfEngine
from forge.serve.port import Request
from forge.train.batch import write_batch
from forge.train.refusals import PACKED, has_own_code, refusals
from forge.train.trainer.packed.sequences import RowLayout, cut_batch
from tests.architectures import ARCHITECTURES, make_architecture
from tests.train.samples import make_group
from tests.train.trained import OneBatch, grpo_trainer, settings_of, train_grpo, weights_of

pytestmark = pytest.mark.filterwarnings("ignore")

QUICK = ("llama", "qwen3_5", "qwen3_moe")
"""A plain model, one of several parts with states, and a mixture."""
EACH = [
    pytest.param(name, marks=() if name in QUICK else pytest.mark.long) for name in ARCHITECTURES
]
GAP = 1e-3
"""Maximum |Δ log-probability| in exact precision."""
QUESTIONS = ("add", "Multiply two matrices.", "A softmax over rows, in one kernel.")
SFT = SftStage(kind="sft", steps=2, learning_rate=3e-3, batch_size=3, max_length=256)
GRPO = GrpoStage(kind="grpo", steps=1, learning_rate=3e-3, micro_batch_tokens=600)


def write_rows(chat: ChatTemplate, at: Path) -> Path:
    rows = [
        chat.training_row((Message(role="user", content=text),
                           Message(role="assistant", content=f"def f(): return {text!r}")))
        for text in QUESTIONS
    ]  # fmt: skip
    lines = ({"input_ids": r.input_ids, "completion_mask": r.completion_mask} for r in rows)
    path = at / "rows.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def sft_trainer(model_dir: Path, at: Path, **keys: Any) -> Any:
    from forge.train.trainer.sft import make_trainer, read_rows

    rows = write_rows(ChatTemplate.load(model_dir), at)
    settings = settings_of(SFT.model_copy(update=keys), model_dir, at, work_dir=at / "sft")
    return make_trainer(settings, rows=read_rows(rows))


def trained_by_sft(model_dir: Path, at: Path) -> dict[str, Any]:
    from forge.train.trainer import sft as stage

    trainer, client = sft_trainer(model_dir, at), OneBatch(at)
    trainer.train()
    stage._publish(trainer, client)  # type: ignore[arg-type]
    (published,) = client.published
    return published


def gap(engine: Any, probe: dict[str, Any]) -> float:
    """Largest |Δ log-probability| between an engine and the trainer."""
    got = engine.score(np.array(probe["prompt_ids"]), np.array(probe["completion_ids"]))
    return float(np.abs(got - np.array(probe["logprobs"])).max())


def answers(engine: HfEngine, chat: ChatTemplate) -> list[Sample]:
    """Answers to the questions, which join and leave the batch at different times."""
    prompts = [chat.prompt([Message(role="user", content=text)]).ids for text in QUESTIONS]
    stops = tuple(chat.stop_token_ids)
    asked = [
        Request(prompt=np.array(ids, np.int32), n=2, max_tokens=8 + 8 * place, temperature=1.0,
                seed=place, stop_token_ids=stops)
        for place, ids in enumerate(prompts)
    ]  # fmt: skip
    for request in asked:
        engine.add(request)
        engine.step()
        engine.step()
    while engine.is_active:
        engine.step()
    return [
        Sample(
            sample_id=2 * group + sample.index, group_id=group, rollout=sample.index, turn=0,
            prompt_ids=tuple(prompts[group]), completion_ids=tuple(sample.tokens.tolist()),
            logprobs=tuple(sample.logprobs.tolist()), advantage=1.0 - 2.0 * sample.index,
            policy_version=1,
        )
        for group, request in enumerate(asked)
        for sample in request.samples
    ]  # fmt: skip


def step_of(model_dir: Path, samples: list[Sample], at: Path, *, lora: LoraTable | None) -> Any:
    """The supervisor of a GRPO step on samples of the model."""
    at.mkdir()
    client = OneBatch(at)
    write_batch(client.path, samples)
    table = ModelTable(path=str(model_dir), lora=lora)
    train_grpo(settings_of(GRPO, model_dir, at, model=table), client)
    return client


def llama_gap(base: Path, published: dict[str, Any], at: Path) -> float:
    """The gap of a llama engine that loads published weights; 0 if it serves no such model."""
    pytest.importorskip("llama_cpp")
    from forge.serve.llama.engine import LlamaEngine
    from forge.serve.llama.model import ModelSettings

    if why_not_llama(json.loads((base / "config.json").read_text()), context_tokens=256):
        return 0.0
    settings = ModelSettings(model_dir=base, work_dir=at, context_tokens=256, num_sequences=1)
    engine = LlamaEngine(settings, num_slots=1)
    engine.load_weights(published["path"], version=1)
    found = gap(engine, published["probe"])
    engine.close()
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", EACH)
def test_a_model_of_each_architecture_is_trained_served_and_exported(
    name: str, tmp_path: Path
) -> None:
    from forge.serve.hf.engine import HfEngine, HfSettings

    base = make_architecture(name, tmp_path / "model")
    chosen, chat = ARCHITECTURES[name], ChatTemplate.load(base)
    taught = trained_by_sft(base, tmp_path)
    assert gap(HfEngine(HfSettings(model_dir=base, context_tokens=256, num_slots=1)),
               taught["probe"]) > GAP, "other weights are detected"  # fmt: skip
    engine = HfEngine(HfSettings(model_dir=base, context_tokens=256, num_slots=4))
    engine.load_weights(taught["path"], version=1)
    assert gap(engine, taught["probe"]) < GAP
    assert llama_gap(base, taught, tmp_path) < 2 * GAP

    samples, learned = answers(engine, chat), Path(taught["path"])
    modules, experts = list(chosen.modules), list(chosen.experts)
    lora = LoraTable(r=4, target_modules=modules, target_parameters=experts)
    adapted = step_of(learned, samples, tmp_path / "lora", lora=lora)
    assert adapted.metrics["train/logprob_gap/mean"] < GAP, "the engine's are the trainer's"
    assert adapted.metrics["train/grad_norm/value"] > 0
    engine.load_weights(adapted.published[0]["path"], version=2)
    assert gap(engine, adapted.published[0]["probe"]) < GAP

    client = step_of(learned, samples, tmp_path / "grpo", lora=None)
    assert client.metrics["train/logprob_gap/mean"] < GAP
    (published,) = client.published
    engine.load_weights(published["path"], version=3)
    assert gap(engine, published["probe"]) < GAP
    assert_exported(base, published, tmp_path / "out", chat)


def assert_exported(base: Path, published: dict[str, Any], out: Path, chat: ChatTemplate) -> None:
    """The export has the files, tensors and dtypes of the base, and generates."""
    import torch
    from transformers import AutoModelForCausalLM

    from forge.train.trainer.publish.export import export

    prompt = list(chat.prompt([Message(role="user", content="add")]).ids)
    found = export({
        "kind": "merge", "model_dir": published["path"], "adapter": None, "base_name": "base",
        "out_dir": out, "prompt_ids": prompt, "stop_ids": list(chat.stop_token_ids),
        "num_tokens": 4, "trust_remote_code": False,
    })  # fmt: skip
    assert found["ids"]
    for path in base.iterdir():
        if path.suffix != ".safetensors":
            assert (out / path.name).read_bytes() == path.read_bytes(), path.name
    want, got = ({k: (v.dtype, v.shape) for k, v in weights_of({"path": at}).items()}
                 for at in (base, out))  # fmt: skip
    assert {k: shape for k, (_, shape) in got.items()} == {k: s for k, (_, s) in want.items()}
    wider = {name for name, (dtype, _) in got.items() if dtype != want[name][0]}
    read: Any = AutoModelForCausalLM.from_pretrained(out, output_loading_info=True)
    model, report = read
    assert not any(report[key] for key in ("missing_keys", "mismatched_keys"))
    frozen = {n.rpartition(".")[2] for n, p in model.named_parameters() if not p.requires_grad}
    assert {name.rpartition(".")[2] for name in wider} <= frozen, "all but a router's bias"
    assert (model.config.get_text_config().use_cache, model.dtype) == (True, torch.bfloat16)
    ids = torch.tensor([prompt])
    assert model.generate(ids, max_new_tokens=4).shape[1] > len(prompt)


@pytest.mark.slow
@pytest.mark.parametrize("name", EACH)
def test_packed_sequences_have_the_loss_and_the_gradients_of_their_own_or_are_refused(
    name: str, tmp_path: Path
) -> None:
    base = make_architecture(name, tmp_path / "model")
    stage = GRPO.model_copy(update={"packing": True})
    lines = refusals(stage, model=ModelTable(path=str(base)), model_dir=base, num_gpus=1)
    assert (lines == []) is (name in PACKED) is ARCHITECTURES[name].packs
    if lines:
        assert lines[0].startswith("packing: found true for a model")
        return
    trainer = grpo_trainer(settings_of(stage, base, tmp_path), OneBatch(tmp_path))
    trainer.router_weight = 0.0  # its loss counts a token each time it is forwarded
    samples = make_group(seed=1) + make_group(seed=2, turns=3)
    batch, found = trainer.sequences_of(samples, version=0), []
    for layout in RowLayout:
        trainer.stats.num_passes += 1
        trainer.model.zero_grad()
        loss = trainer.training_step(trainer.model, cut_batch(batch, max_tokens=400, layout=layout))
        named = trainer.model.named_parameters()
        found.append((loss.item(), {n: p.grad for n, p in named if p.grad is not None}))
    want, gradients = found[0]
    for loss, theirs in found[1:]:
        assert loss == pytest.approx(want, abs=1e-5)
        for key, gradient in gradients.items():
            np.testing.assert_allclose(theirs[key], gradient, atol=5e-6, rtol=1e-3, err_msg=key)


@pytest.mark.parametrize(
    ("keys", "stage", "line"),
    [
        ({"layers_block_type": ["mamba", "moe"]}, SFT, "packing: found true for a model with"),
        ({"mamba_d_ssm": 64}, SFT, "packing: found true for a model with"),
        ({"layer_types": ["conv"]}, GRPO, "packing: found true for a model with states"),
        ({"model_type": "nemotron"}, GRPO, "packing: found true for a model of type"),
        ({"model_type": "mine", "auto_map": {}}, SFT, "model.path: found a model whose code is"),
        ({"quantization_config": {"quant_method": "gptq"}}, GRPO, "model.path: found weights"),
    ],
)
def test_a_config_that_cannot_be_trained_so_is_refused_before_the_start(
    tmp_path: Path, keys: dict[str, Any], stage: SftStage | GrpoStage, line: str
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"} | keys))
    found = {
        asked: refusals(
            stage.model_copy(update={"packing": asked}),
            model=ModelTable(path=str(tmp_path)), model_dir=tmp_path, num_gpus=1,
        )
        for asked in (False, True)
    }  # fmt: skip
    assert found[True][0].startswith(line)
    assert found[False] == (found[True][:1] if line.startswith("model.") else [])


def test_code_in_the_directory_of_a_model_that_transformers_has_is_not_needed(
    tmp_path: Path,
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "phi3", "auto_map": {}}))
    assert not has_own_code(tmp_path)


def test_a_model_without_one_of_its_tensors_is_refused(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    from forge.train.trainer.model.load import load_model

    base = make_architecture("gpt_oss", tmp_path / "model")
    tensors = weights_of({"path": base})
    tensors.pop("model.layers.1.self_attn.q_proj.weight")
    save_file(tensors, base / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=r"no tensor for 1 of its parameters, as model"):
        load_model(settings_of(SFT, base, tmp_path))


def test_a_config_that_names_no_dtype_gets_that_of_its_weights(tmp_path: Path) -> None:
    base = make_architecture("llama", tmp_path / "model")
    config = json.loads((base / "config.json").read_text())
    config.pop("dtype")
    (base / "config.json").write_text(json.dumps(config))
    published = trained_by_sft(base, tmp_path)
    assert json.loads((base / "config.json").read_text()) == config, "the user's is not changed"
    written = json.loads(Path(published["path"], "config.json").read_text())
    assert written == config | {"dtype": "bfloat16"}


@pytest.mark.long
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_plan_knows_the_parameters_and_the_cache_of_the_model(name: str, tmp_path: Path) -> None:
    import torch
    import transformers

    from forge.runner.plan.shape import model_shape
    from forge.train.trainer.child.settings import model_class

    made = make_architecture(name, tmp_path)
    config = json.loads((made / "config.json").read_text())
    foreign = json.dumps(config | {"attn_implementation": "someone/kernel"})
    (made / "config.json").write_text(foreign)  # whose code a plan does not load
    shape = model_shape(ModelTable(path=str(made)))
    (made / "config.json").write_text(json.dumps(config))
    kind = model_class(made, trust_remote_code=False)
    model = kind.from_pretrained(made, dtype=torch.float32)
    assert shape.params == model.num_parameters()
    cache: Any = transformers.DynamicCache(config=model.config)
    model(input_ids=torch.ones(1, 40, dtype=torch.long), past_key_values=cache, use_cache=True)
    parts = [
        (layer.keys, layer.values)
        for layer in cache.layers
        if getattr(layer, "keys", None) is not None
    ]
    values = sum(part.numel() for pair in parts for part in pair)
    # A window's layer keeps its last token but one.
    windows = sum(values for window, values in shape.kv if window is not None)
    assert values == shape.kv_of(40) - windows
    adapter = LoraTable(r=1, target_modules=list(ARCHITECTURES[name].modules))
    adapted = sum(
        sum(module.weight.shape)
        for path, module in model.named_modules()
        if path.rpartition(".")[2] in ARCHITECTURES[name].modules
    )
    assert shape.adapter_params(adapter) == adapted
