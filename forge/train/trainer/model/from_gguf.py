"""`python -m forge.train.trainer.model.from_gguf CONFIG.json`: a model directory of a GGUF file, in
bf16, compared with llama.cpp.

Config: `path` of the file, `model_dir`, `threads`, `result_path`. Names and layouts are those of
transformers' loader, values come from gguf. Before the directory appears, its tokens and its logits
are compared with those that llama.cpp computes from the file: a model that transformers would
compute differently is refused. The result file holds `refused`, a line for the user, or nothing.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from forge.errors import ConfigError
from forge.process.lease import collector_paused, end_process, hold_lease
from forge.process.machine import is_disk_full
from forge.train.checkpoints import whole_dir
from forge.train.gguf import GgufModel, read_gguf

logger = logging.getLogger(__name__)

SHARD = "4GB"
DIGITS = ("smollm", "starcoder", "refact", "command-r")
"""Pre-tokenizers that take each digit alone, then pieces of GPT-2."""
WHOLE = ("llama-bpe", "llama3", "llama-v3", "tekken", "gpt-4o", "llama4", "falcon3", "pixtral")
"""Pre-tokenizers whose pieces are tokens where the vocabulary has them, whatever the merges."""
SAMPLES = (
    "def softmax(x: torch.Tensor, dim=-1):\n    m = x.max(dim)[0]\n\n\n    return x - m[:, None]",
    "@triton.jit\ndef k(x_ptr, n: tl.constexpr):\n\toffs = tl.arange(0, 1024)\n\t\tmask=offs<n\r\n",
    "It's 2026, isn't it? WE'LL see: they'd pay $1,234.50 (or 12 345 €)…  two  spaces   three\n \n",
    "Größe naïve \u212b “quotes” ½ ² \u0133 \ufb01 東京タワー 한국어 Привет שלום مرحبا",
    "हिन्दी \U0001f469\u200d\U0001f680 \u200b\xa0x 1234567.89e-10",
    "if (a!=b&&c||!d) { return a->b[0x1F] <<= 3; } /* ~`^ */ \\n \\\\ <|x|> </think> [INST] <s>",
)
"""Texts whose tokens must be those of llama.cpp."""
LIKE = {"gemma": "gemma2", "smollm3": "llama"}
"""Architectures with the layout of another, which transformers' loader does not know."""
MIN_CORRELATION = 0.97
"""Least mean correlation with llama.cpp's logits. Its arithmetic on quantized weights costs 0.01;
a wrong layout gives less than 0.9."""
CONTROL = 3
"""Type of special tokens."""
MAX_SPECIAL = 32
NUM_COMPARED = 96
"""Tokens whose logits are compared."""


def main() -> None:
    config = hold_lease()
    result: dict[str, str] = {}
    with collector_paused():
        from forge.train.trainer.child.settings import start_logging

        start_logging()
        try:
            make_model(Path(config["path"]), Path(config["model_dir"]), threads=config["threads"])
        except ConfigError as error:
            result = {"refused": str(error)}
        except (ImportError, MemoryError):  # the environment's, not the file's
            raise
        except Exception as error:  # whatever a library raises for a file that no one has tried
            logger.exception("%s", config["path"])
            result = _named(config["path"], error)
    Path(config["result_path"]).write_text(json.dumps(result))
    end_process()


def _named(path: str, error: Exception) -> dict[str, str]:
    words = " ".join(str(error).split())[:300]
    if is_disk_full(error) or "os error 28" in words:  # safetensors has an error of its own
        return {"disk": words}
    kind = type(error).__name__
    return {"refused": f"model.path: {path}: cannot be made into a model: {kind}: {words}"}


def make_model(path: Path, model_dir: Path, *, threads: int) -> None:
    """Write the model directory. Raises ConfigError if it would be another model than the file."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(threads)
    source = read_gguf(path)
    theirs = _Reference(path, threads=threads)
    with whole_dir(model_dir) as partial:
        tokenizer = make_tokenizer(source)
        theirs.require_tokens(source, tokenizer)
        tokenizer.post_processor = theirs.beginning(source)
        tokenizer.save(str(partial / "tokenizer.json"))
        _load_weights(source).save_pretrained(partial, max_shard_size=SHARD)
        model = AutoModelForCausalLM.from_pretrained(partial, dtype=torch.bfloat16)
        theirs.require_logits(source, model, tokenizer)
        _write_texts(source, partial, begins=theirs.begins(), ends=theirs.ends())


def _write_texts(source: GgufModel, folder: Path, *, begins: bool, ends: list[int]) -> None:
    """Write the template and the configs of tokenizer and generation."""
    if source.chat_template is not None:
        (folder / "chat_template.jinja").write_text(source.chat_template, encoding="utf-8")
    found = source.config()
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **source.special_tokens,
        "add_bos_token": begins,
        "clean_up_tokenization_spaces": False,
        "model_max_length": found["max_position_embeddings"],
    }
    eos = found["eos_token_id"]
    order = [eos, *(end for end in ends if end != eos)] if eos is not None else ends
    if not order:
        raise ConfigError(f"model.path: {source.path}: no token ends an answer; eos_token_id in it")
    generation = {
        "do_sample": True, "eos_token_id": order,
        "bos_token_id": found["bos_token_id"], "pad_token_id": found["pad_token_id"],
    }  # fmt: skip
    for name, values in (("tokenizer_config", config), ("generation_config", generation)):
        (folder / f"{name}.json").write_text(json.dumps(values, indent=1) + "\n")


def make_tokenizer(source: GgufModel) -> Any:
    """The tokenizer of the file's vocabulary, as `tokenizers` has it."""
    from tokenizers import pre_tokenizers

    try:
        from transformers.integrations.gguf.gguf_tokenizer_mapping import convert_gguf_tokenizer
    except ImportError:  # transformers 5.17 and older
        from transformers.integrations.ggml import convert_gguf_tokenizer  # pyright: ignore[reportAttributeAccessIssue]

    def value(key: str) -> Any:
        return source.metadata.get(f"tokenizer.ggml.{key}")

    pre = value("pre")
    given = {
        "tokenizer_type": value("model"), "pre_tokenizer_type": pre, "tokens": value("tokens"),
        "scores": value("scores"), "token_type": value("token_type"), "merges": value("merges"),
        "add_prefix_space": value("add_space_prefix"),
    }  # fmt: skip
    given = {key: found for key, found in given.items() if found is not None}
    tokenizer: Any = convert_gguf_tokenizer(source.architecture, given)[0]
    if value("model") != "gpt2":
        return tokenizer
    if pre in DIGITS:
        digits = pre_tokenizers.Digits(individual_digits=True)
        pieces = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, pieces])
    tokenizer.model.ignore_merges = pre in WHOLE
    return tokenizer


def _load_weights(source: GgufModel) -> Any:
    """The file's weights in bf16 as a model to save, whose buffers are not computed."""
    import torch
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    found = source.config()
    config = CONFIG_MAPPING[found.pop("model_type")](**found, dtype=torch.bfloat16)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    model.load_state_dict(dict(_tensors(source, model)), strict=False, assign=True)
    model.tie_weights()
    return model


def _tensors(source: GgufModel, model: Any) -> Iterator[tuple[str, Any]]:
    """Each tensor of the model by its name in transformers, in bf16. Raises ConfigError if the file
    has others than the model, or another shape."""
    import gguf
    import numpy as np
    import torch
    from transformers.modeling_gguf_pytorch_utils import (
        TENSOR_PROCESSORS,
        TensorProcessor,
        get_gguf_hf_weights_map,
    )

    where, architecture = f"model.path: {source.path}", source.architecture
    processors: Mapping[str, Any] = TENSOR_PROCESSORS
    kind = processors.get(LIKE.get(architecture, architecture), TensorProcessor)
    processor = kind(config=model.config.to_dict())
    names = get_gguf_hf_weights_map(model, processor, architecture, source.value("block_count"))
    shapes = {name: tuple(each.shape) for name, each in model.state_dict().items()}
    tied = {"lm_head.weight"} if model.config.tie_word_embeddings else set[str]()
    absent = shapes.keys() - tied - {names[each] for each in source.tensors if each in names}
    if absent:
        raise ConfigError(f"{where}: lacks {min(absent)}, {len(absent)} tensors in all")
    data = np.memmap(source.path, mode="r", dtype=np.uint8)
    for name, tensor in source.tensors.items():
        if name.startswith("rope_f"):
            continue  # in the config
        if name not in names:
            raise ConfigError(f"{where}: {name}: not a tensor of {type(model).__name__}")
        quantization = gguf.GGMLQuantizationType(tensor.type_id)
        raw = data[tensor.offset : tensor.offset + tensor.num_bytes]
        values = gguf.dequantize(raw, quantization).reshape(tensor.shape)
        values = processor.process(weights=values, name=name).weights
        if tuple(values.shape) != shapes[names[name]]:
            expected = list(shapes[names[name]])
            raise ConfigError(f"{where}: {name} is {list(values.shape)}, must be {expected}")
        if not np.isfinite(values.sum(dtype=np.float64)):
            raise ConfigError(f"{where}: {name} holds NaN or infinity")
        yield names[name], torch.from_numpy(np.array(values, np.float32)).to(torch.bfloat16)


class _Reference:
    """The file as llama.cpp reads it."""

    def __init__(self, path: Path, *, threads: int) -> None:
        import llama_cpp

        self._llama_cpp: Any = llama_cpp
        self._path, self._threads = str(path), threads
        self._words: Any = llama_cpp.Llama(self._path, vocab_only=True, verbose=False)
        self._vocab: Any = llama_cpp.llama_model_get_vocab(self._words.model)

    def ends(self) -> list[int]:
        """Ids of the tokens that end an answer."""
        is_end = self._llama_cpp.llama_vocab_is_eog
        return [each for each in range(self._words.n_vocab()) if is_end(self._vocab, each)]

    def begins(self) -> bool:
        """True if a text begins with the token of beginnings."""
        return bool(self._llama_cpp.llama_vocab_get_add_bos(self._vocab))

    def beginning(self, source: GgufModel) -> Any:
        """The tokenizer's step that puts that token there; None if there is none."""
        from tokenizers import processors

        text = source.special_tokens.get("bos_token")
        if text is None or not self.begins():
            return None
        number = source.config()["bos_token_id"]
        return processors.TemplateProcessing(single=f"{text} $A", special_tokens=[(text, number)])

    def require_tokens(self, source: GgufModel, tokenizer: Any) -> None:
        """Raises ConfigError if a text has other tokens."""
        tokens = source.metadata["tokenizer.ggml.tokens"]
        kinds = source.metadata.get("tokenizer.ggml.token_type", ())
        special = [token for token, kind in zip(tokens, kinds, strict=False) if kind == CONTROL]
        for text in (*SAMPLES, "x".join(special[:MAX_SPECIAL])):
            ours = tokenizer.encode(text, add_special_tokens=False).ids
            theirs = self._words.tokenize(text.encode(), add_bos=False, special=True)
            if ours != theirs:
                both = enumerate(zip(ours, theirs, strict=False))
                at = next((index for index, (one, other) in both if one != other), 0)
                raise ConfigError(
                    f"model.path: {source.path}: tokenizers splits {text!r} at token {at} into "
                    f"{ours[at : at + 4]}, llama.cpp into {theirs[at : at + 4]}; "
                    f'tokenizer.ggml.pre "{source.metadata.get("tokenizer.ggml.pre")}" is not read'
                )

    def require_logits(self, source: GgufModel, model: Any, tokenizer: Any) -> None:
        """Raises ConfigError if the model computes something else."""
        import numpy as np
        import torch

        ids = tokenizer.encode("".join(SAMPLES), add_special_tokens=False).ids
        bos = source.metadata.get("tokenizer.ggml.bos_token_id")
        ids = [*([] if bos is None else [bos]), *ids][:NUM_COMPARED]
        engine: Any = self._llama_cpp.Llama(
            self._path, n_ctx=NUM_COMPARED, logits_all=True, verbose=False,
            n_threads=self._threads, n_threads_batch=self._threads, n_gpu_layers=0,
        )  # fmt: skip
        engine.eval(ids)
        theirs = np.array(engine.scores[: len(ids)], dtype=np.float64)
        with torch.inference_mode():
            ours = model(torch.tensor([ids])).logits[0, :, : theirs.shape[1]].double().numpy()
        correlation = np.mean([np.corrcoef(a, b)[0, 1] for a, b in zip(ours, theirs, strict=True)])
        same = np.mean(ours.argmax(1) == theirs.argmax(1))
        logger.info("logits of llama.cpp: correlation %.5f, same first %.3f", correlation, same)
        if not correlation >= MIN_CORRELATION:
            raise ConfigError(
                f"model.path: {source.path}: transformers computes another model than llama.cpp "
                f"from it (correlation of the logits {correlation:.3f}); a model directory"
            )


if __name__ == "__main__":
    main()
