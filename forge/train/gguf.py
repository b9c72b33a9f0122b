"""A model in a GGUF file, from its header: sizes, vocabulary, types of tensors. No torch, and no
tensor is read but the few numbers of `rope_freqs`.

Promise: a file that `read_gguf` returns can be made into a model; any other is a ConfigError of one
line: cut short, a part of a split model, an adapter, without a vocabulary, of an architecture or a
quantization that is not read. gguf's own reader takes seconds for a vocabulary.
"""

from __future__ import annotations

import math
import mmap
import os
import struct
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from stat import S_ISREG
from typing import TYPE_CHECKING, Any

from forge.errors import ConfigError, MachineError, pip_install

if TYPE_CHECKING:
    import numpy as np

FORMAT = 1
MODEL_TYPES = {
    "llama": "llama",  # also Mistral
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "gemma": "gemma",
    "gemma2": "gemma2",
    "gemma3": "gemma3_text",
    "phi3": "phi3",
    "smollm3": "smollm3",
}
NEEDED = (
    "block_count", "context_length", "embedding_length", "feed_forward_length",
    "attention.head_count", "attention.layer_norm_rms_epsilon",
)  # fmt: skip
OTHER_KINDS = {"adapter": "an adapter", "mmproj": "a vision encoder", "imatrix": "an imatrix"}
FORMATS = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip
FLOAT32, STRING, ARRAY = 6, 8, 9
MAX_DIMENSIONS = 4
MAX_VALUES = 1 << 22
"""Values of a list; no header has more."""
MAX_NAMES = 1 << 16
"""Keys or tensors; no header has more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufTensor:
    name: str
    shape: tuple[int, ...]
    type_id: int
    offset: int
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufModel:
    """The header of a whole file."""

    path: Path
    num_bytes: int
    metadata: Mapping[str, Any]
    tensors: Mapping[str, GgufTensor]

    @property
    def architecture(self) -> str:
        return self.metadata["general.architecture"]

    @property
    def num_params(self) -> int:
        return sum(math.prod(each.shape) for each in self.tensors.values())

    @property
    def quantization(self) -> str:
        """Name of the type that has most of the bytes, as `Q4_K`."""
        import gguf

        num = Counter[int]()
        for each in self.tensors.values():
            num[each.type_id] += each.num_bytes
        return gguf.GGMLQuantizationType(num.most_common(1)[0][0]).name

    @property
    def head_dim(self) -> int:
        width = self.value("embedding_length") // self.value("attention.head_count")
        return self.value("attention.key_length", width)

    @property
    def chat_template(self) -> str | None:
        return self.metadata.get("tokenizer.chat_template")

    @property
    def special_tokens(self) -> dict[str, str]:
        """Texts of special tokens, by the name that templates use."""
        texts = self.metadata["tokenizer.ggml.tokens"]
        numbers = {name: self._token(name) for name in TOKENS}
        return {name: texts[number] for name, number in numbers.items() if number is not None}

    def value(self, key: str, default: Any = None) -> Any:
        return self.metadata.get(f"{self.architecture}.{key}", default)

    def config(self) -> dict[str, Any]:
        heads, hidden = self.value("attention.head_count"), self.value("embedding_length")
        return {
            "model_type": MODEL_TYPES[self.architecture],
            "hidden_size": hidden,
            "num_hidden_layers": self.value("block_count"),
            "intermediate_size": self.value("feed_forward_length"),
            "num_attention_heads": heads,
            "num_key_value_heads": self.value("attention.head_count_kv", heads),
            "head_dim": self.head_dim,
            "vocab_size": self.tensors["token_embd.weight"].shape[0],
            "max_position_embeddings": self.value("context_length"),
            "rms_norm_eps": self.value("attention.layer_norm_rms_epsilon"),
            "tie_word_embeddings": "output.weight" not in self.tensors,
            "rope_parameters": self._positions(),
            **{f"{name}_id": self._token(name) for name in ("bos_token", "eos_token", "pad_token")},
            **self._own_values(),
        }

    def _token(self, name: str) -> int | None:
        return self.metadata.get(f"tokenizer.ggml.{TOKENS[name]}")

    def _own_values(self) -> dict[str, Any]:
        window = self.value("attention.sliding_window")
        match self.architecture:
            case "llama" | "smollm3":
                kinds = {"attention_bias": "attn_q", "mlp_bias": "ffn_gate"}
                return {key: f"blk.0.{kind}.bias" in self.tensors for key, kind in kinds.items()}
            case "qwen3":
                return {"attention_bias": "blk.0.attn_q.bias" in self.tensors}
            case "phi3":
                original = self.value("rope.scaling.original_context_length")
                return {
                    "sliding_window": window,
                    "original_max_position_embeddings": original or self.value("context_length"),
                }
            case "gemma2" | "gemma3":
                # As llama.cpp: the largest model of each generation scales by another width.
                layers = {"gemma2": 46, "gemma3": 62}[self.architecture]
                scalar = self.head_dim
                if self.value("block_count") == layers:
                    scalar = self.value("embedding_length") // self.value("attention.head_count")
                found = {"sliding_window": window, "query_pre_attn_scalar": scalar}
                if self.architecture == "gemma2":
                    found["attn_logit_softcapping"] = self.value("attn_logit_softcapping", 50.0)
                    found["final_logit_softcapping"] = self.value("final_logit_softcapping", 30.0)
                return found
            case _:
                return {}

    def _positions(self) -> dict[str, Any]:
        theta = float(self.value("rope.freq_base", 10000.0))
        scaled = {"rope_theta": theta, **self._scaling(theta)}
        if self.architecture != "gemma3":
            return scaled
        local = float(self.value("rope.freq_base_swa", 10000.0))
        return {
            "full_attention": scaled,
            "sliding_attention": {"rope_type": "default", "rope_theta": local},
        }

    def _scaling(self, theta: float) -> dict[str, Any]:
        kind = self.value("rope.scaling.type", "none")
        factor = self.value("rope.scaling.factor")
        original = self.value("rope.scaling.original_context_length")
        if "rope_freqs.weight" in self.tensors:
            return self._llama3(theta)
        if "rope_factors_long.weight" in self.tensors:
            long, short = (
                self._floats(f"rope_factors_{each}.weight") for each in ("long", "short")
            )
            found = {"long_factor": long.tolist(), "short_factor": short.tolist()}
            attention = self.value("rope.scaling.attn_factor")
            more = {} if attention is None else {"attention_factor": attention}
            return {"rope_type": "longrope", **self._partial(), **found, **more}
        if kind == "none" or factor in (None, 0, 1):
            return {"rope_type": "default", **self._partial()}
        if kind == "linear":
            return {"rope_type": "linear", "factor": factor}
        if kind == "yarn" and original:
            more = {"factor": factor, "original_max_position_embeddings": original}
            return {"rope_type": "yarn", **more}
        raise self._refused(f'rope.scaling.type = "{kind}"; "none", "linear" or "yarn"')

    def _partial(self) -> dict[str, float]:
        rotated = self.value("rope.dimension_count", self.head_dim)
        share = rotated / self.head_dim
        return {} if share == 1 else {"partial_rotary_factor": share}

    def _llama3(self, theta: float) -> dict[str, Any]:
        """The scaling of Llama 3.1 and later, of which the file has only the resulting numbers."""
        import numpy as np

        found = self._floats("rope_freqs.weight")
        factor, low, high, original = float(found.max()), 1.0, 4.0, 8192
        waves = 2 * np.pi * theta ** (np.arange(len(found)) / len(found))
        smooth = np.clip((original / waves - low) / (high - low), 0, 1)
        if not np.allclose(found, 1 / ((1 - smooth) / factor + smooth), rtol=1e-3):
            raise self._refused("rope_freqs that are not those of Llama 3; other positions")
        return {
            "rope_type": "llama3", "factor": factor, "low_freq_factor": low,
            "high_freq_factor": high, "original_max_position_embeddings": original,
        }  # fmt: skip

    def _floats(self, name: str) -> np.ndarray:
        import numpy as np

        tensor = self.tensors[name]
        if tensor.type_id != 0:
            raise self._refused(f"{name} of type {tensor.type_id}; float32")
        return np.fromfile(
            self.path, dtype=np.float32, count=math.prod(tensor.shape), offset=tensor.offset
        )

    def _refused(self, text: str) -> ConfigError:
        return ConfigError(f"model.path: {self.path}: found {text}")


TOKENS = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}
"""Keys of special tokens in metadata, by the name that templates use."""


def made_dir(digest: str) -> Path:
    """The model directory that is made of the file with this SHA-256; it need not exist."""
    return made_models() / f"{digest}-{FORMAT}"


def made_models() -> Path:
    """Folder of this user's made models: of GGUF files, and of runs' adapters."""
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "forge" / "models"


def read_gguf(path: Path) -> GgufModel:
    """The header of a file, checked. Takes up to a second, the first time. Raises ConfigError for
    anything but a whole file of a model that is read; MachineError without gguf."""
    try:
        found = path.stat()
        if not S_ISREG(found.st_mode):  # opening a pipe waits for its other end
            raise ConfigError(f"model.path: {path}: not a regular file; a whole GGUF file")
        return _read(path, found.st_mtime_ns, found.st_size)
    except OSError as error:
        raise MachineError(f"model.path: {path}: {error.strerror}") from error
    except ImportError as error:
        raise MachineError(f"model.path: {path}: needs gguf; {pip_install('llama')}") from error


@lru_cache(maxsize=4)
def _read(path: Path, changed: int, num_bytes: int) -> GgufModel:
    del changed
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            model = _Header(path, data).read()
        _require_model(model)
        model.config()  # raises what it cannot say
    except (struct.error, ValueError, KeyError, TypeError, ArithmeticError) as error:
        text = f"cut short or damaged: no header of a model within {num_bytes} bytes"
        raise ConfigError(f"model.path: {path}: {text}; a whole GGUF file") from error
    return model


class _Header:
    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self._path, self._data, self._at = path, data, 0

    def read(self) -> GgufModel:
        self._require_format()
        num_tensors, num_values = self._unpack("QQ")
        _require_few(num_tensors, num_values, most=MAX_NAMES)
        metadata: dict[str, Any] = {}
        for _ in range(num_values):
            key = self._string()
            metadata[key] = self._value(*self._unpack("I"))
        _require_kind(self._path, metadata, num_tensors)
        raw = [(self._string(), *self._tensor()) for _ in range(num_tensors)]
        alignment = int(metadata.get("general.alignment", 32)) or 1
        begin = -(-self._at // alignment) * alignment
        tensors = {
            name: GgufTensor(
                name=name, shape=shape, type_id=type_id, offset=begin + offset,
                num_bytes=self._num_bytes(name, shape, type_id),
            )
            for name, shape, type_id, offset in raw
        }  # fmt: skip
        self._require_data(tensors)
        return GgufModel(
            path=self._path, num_bytes=len(self._data), metadata=metadata, tensors=tensors
        )

    def _require_format(self) -> None:
        magic, version = self._data[:4], 0
        if magic == b"GGUF":
            self._at = 4
            (version,) = self._unpack("I")
        if version in (2, 3):
            return
        text = "not a GGUF file"
        if magic == b"GGUF":
            text = f"GGUF of version {version}"
            if version >= 1 << 16:
                text = "a GGUF file for big-endian machines"
        raise ConfigError(f"model.path: {self._path}: {text}; GGUF of version 2 or 3")

    def _require_data(self, tensors: Mapping[str, GgufTensor]) -> None:
        end = max(each.offset + each.num_bytes for each in tensors.values())
        if end > len(self._data):
            raise ConfigError(
                f"model.path: {self._path}: cut short: it has {len(self._data)} bytes, and its "
                f"tensors need {end}; a whole GGUF file"
            )

    def _num_bytes(self, name: str, shape: tuple[int, ...], type_id: int) -> int:
        import gguf
        from gguf.quants import _type_traits  # pyright: ignore[reportPrivateUsage]

        readable = {*_type_traits, gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType.F16}
        known = {each.value: each for each in gguf.GGMLQuantizationType}
        if (kind := known.get(type_id)) not in readable:
            found = f"quantization {type_id}" if kind is None else kind.name
            allowed = ", ".join(sorted(each.name for each in readable))
            raise ConfigError(
                f"model.path: {self._path}: {name}: found {found}, which gguf cannot dequantize; "
                f"{allowed}"
            )
        block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(type_id)]
        return math.prod(shape) // block * size

    def _tensor(self) -> tuple[tuple[int, ...], int, int]:
        (num,) = self._unpack("I")
        if not 1 <= num <= MAX_DIMENSIONS:
            raise ValueError(num)
        dimensions = self._unpack(f"{num}Q")
        type_id, offset = self._unpack("IQ")
        return tuple(reversed(dimensions)), type_id, offset

    def _value(self, kind: int) -> Any:
        if kind == STRING:
            return self._string()
        if kind == FLOAT32:
            return float(f"{self._unpack('f')[0]:.7g}")  # as it was written: 1e-6, not 9.9999999e-7
        if kind != ARRAY:
            return self._unpack(FORMATS[kind])[0]
        kind, num = self._unpack("IQ")
        _require_few(num, most=MAX_VALUES)
        if kind == STRING:
            return [self._string() for _ in range(num)]
        return list(self._unpack(f"{num}{FORMATS[kind]}"))

    def _string(self) -> str:
        (length,) = self._unpack("Q")
        begin, self._at = self._at, self._at + length
        if self._at > len(self._data):
            raise ValueError(length)
        return self._data[begin : self._at].decode("utf-8", "surrogateescape")

    def _unpack(self, form: str) -> tuple[Any, ...]:
        size = struct.calcsize(f"<{form}")
        if self._at + size > len(self._data):
            raise ValueError(size)
        values = struct.unpack_from(f"<{form}", self._data, self._at)
        self._at += size
        return values


def _require_few(*numbers: int, most: int) -> None:
    """Refuses damaged numbers before the rest of a large file is read as values."""
    if max(numbers) > most:
        raise ValueError(numbers)


def _require_kind(path: Path, metadata: Mapping[str, Any], num_tensors: int) -> None:
    where, architecture = f"model.path: {path}", metadata.get("general.architecture")
    kind = OTHER_KINDS.get(str(metadata.get("general.type")))
    if architecture == "clip":
        kind = OTHER_KINDS["mmproj"]
    if kind:
        raise ConfigError(f"{where}: {kind}, not a model; a GGUF file of a model")
    if (parts := int(metadata.get("split.count", 0))) > 1:
        raise ConfigError(
            f"{where}: part {int(metadata.get('split.no', 0)) + 1} of {parts} of a split model; "
            "one file, which llama-gguf-split --merge writes"
        )
    if architecture not in MODEL_TYPES:
        raise ConfigError(
            f"{where}: found architecture {architecture!r}; one of {', '.join(MODEL_TYPES)}"
        )
    if not num_tensors:
        raise ConfigError(f"{where}: a vocabulary without weights; a GGUF file of a model")
    tokens = metadata.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, list) or not tokens or not isinstance(tokens[0], str):
        raise ConfigError(f"{where}: weights without a vocabulary; tokenizer.ggml.tokens in it")
    if (model := metadata.get("tokenizer.ggml.model")) not in ("gpt2", "llama"):
        raise ConfigError(f'{where}: found tokenizer.ggml.model "{model}"; "gpt2" or "llama"')


def _require_model(model: GgufModel) -> None:
    """Refuses models without the values that all have, and those with other parts."""
    where = f"model.path: {model.path}"
    for key in NEEDED:
        if not isinstance(found := model.value(key), int | float) or not found:
            text = "lists a value for each layer" if isinstance(found, list) else "lacks a value"
            raise ConfigError(f"{where}: {model.architecture}.{key} {text}; a number")
    tokens = model.metadata["tokenizer.ggml.tokens"]
    if twice := len(tokens) - len(set(tokens)):  # llama.cpp aborts
        raise ConfigError(f"{where}: {twice} of {len(tokens)} tokens are there twice; once each")
    for key in TOKENS.values():
        number = model.metadata.get(f"tokenizer.ggml.{key}", 0)
        if not isinstance(number, int) or not 0 <= number < len(tokens):
            text = f"found tokenizer.ggml.{key} = {number}; a token of {len(tokens)}"
            raise ConfigError(f"{where}: {text}")
    if "token_embd.weight" not in model.tensors:
        raise ConfigError(f"{where}: lacks token_embd.weight; a GGUF file of a model")
    if (blocks := model.value("block_count")) > (num := len(model.tensors)):
        raise ConfigError(f"{where}: {blocks} blocks and {num} tensors; a GGUF file of a model")
    if model.value("expert_count"):
        raise ConfigError(f"{where}: a {model.architecture} with experts; a dense model")
