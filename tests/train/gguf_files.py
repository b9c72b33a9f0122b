"""Writes small GGUF files: headers for refusals, and whole models of a directory."""

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from forge.serve.llama import checkpoint

VOCAB, HIDDEN = 512, 64
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SIZES = {
    "context_length": 256, "embedding_length": HIDDEN, "block_count": 1, "feed_forward_length": 96,
    "attention.head_count": 4, "attention.head_count_kv": 2,
}  # fmt: skip


def write_header(
    path: Path, architecture: str = "llama", template: str | None = CHATML, **more: Any
) -> Path:
    """A file with an embedding alone. `more`: metadata by key, with `__` for dots; None removes."""
    values: dict[str, Any] = {f"{architecture}.{key}": number for key, number in SIZES.items()}
    values[f"{architecture}.attention.layer_norm_rms_epsilon"] = 1e-6
    values |= {key.replace("__", "."): value for key, value in more.items()}
    with _writing(path, architecture) as writer:
        if "tokenizer__ggml__tokens" not in more:
            add_vocabulary(writer, template=template)
        for key, value in values.items():
            _add(writer, key, value)
        writer.add_tensor("token_embd.weight", np.ones((VOCAB, HIDDEN), np.float32))
    return path


def write_whole(path: Path, model_dir: Path, *, pre: str = "smollm") -> Path:
    """The model of a directory, in bf16, with a vocabulary."""
    found = checkpoint.open_weights(model_dir, served=None)
    assert isinstance(found, checkpoint.Checkpoint)
    with _writing(path, found.layout.architecture.name) as writer:
        for key, value in found.layout.metadata.items():
            _add(writer, f"{writer.arch}.{key}", value)
        add_vocabulary(writer, pre=pre)
        for name, tensor in found.tensors.items():
            array = tensor.read(checkpoint.Precision.FAST)
            if array.dtype == np.uint16:
                kind = gguf.GGMLQuantizationType.BF16
                writer.add_tensor(name, array.view(np.uint8), raw_dtype=kind)
            else:
                writer.add_tensor(name, array)
    return path


def add_vocabulary(
    writer: gguf.GGUFWriter, *, pre: str = "smollm", template: str | None = CHATML
) -> None:
    """Byte-level BPE, which joins two digits where its pieces have two."""
    merges = ["1 2", "i n"]
    tokens = [*SPECIAL, *byte_alphabet(), *(merge.replace(" ", "") for merge in merges)]
    tokens += [f"<unused{index}>" for index in range(VOCAB - len(tokens))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([3] * len(SPECIAL) + [1] * (VOCAB - len(SPECIAL)))
    writer.add_token_merges(merges)
    writer.add_eos_token_id(2)
    if template is not None:
        writer.add_chat_template(template)


def byte_alphabet() -> list[str]:
    """The letters that byte-level BPE has for the 256 bytes."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in shown]
    letters = {byte: chr(byte) for byte in shown}
    letters |= {byte: chr(256 + index) for index, byte in enumerate(hidden)}
    return [letters[byte] for byte in range(256)]


@contextmanager
def _writing(path: Path, architecture: str) -> Generator[gguf.GGUFWriter]:
    writer = gguf.GGUFWriter(str(path), architecture)
    yield writer
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, list):
        writer.add_array(key, value)
    elif value is not None:
        types = {
            str: gguf.GGUFValueType.STRING, int: gguf.GGUFValueType.UINT32,
            float: gguf.GGUFValueType.FLOAT32,
        }  # fmt: skip
        writer.add_key_value(key, value, types[type(value)])
