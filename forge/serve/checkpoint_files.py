"""The weights of a checkpoint or an adapter on disk: their files, their tensors without torch, and
the checks that every engine makes before it loads a published directory.

Promise: a truncated or malformed file is a ConfigError before any tensor is read.

The safetensors library is not used here. Its numpy side fails on bfloat16, and it maps the file, so
that a file rewritten while it is read kills the process with SIGBUS. The format: 8 bytes of header
length (little endian), JSON header, bytes of tensors.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Set
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np

from forge.errors import ConfigError

MAX_HEADER_BYTES = 100_000_000
"""Limit of the reference implementation."""
ADAPTER_CONFIG = "adapter_config.json"


class Element(StrEnum):
    """Element types of weights, by their safetensors name."""

    F32 = "F32"
    BF16 = "BF16"
    F16 = "F16"


RAW_DTYPE = {
    Element.F32: np.dtype("<f4"),
    Element.BF16: np.dtype("<u2"),
    Element.F16: np.dtype("<f2"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensor:
    """The place of a tensor in a file."""

    name: str
    path: Path
    element: Element
    shape: tuple[int, ...]
    offset: int
    """Position of its first byte in the file."""

    def read_f32(self) -> np.ndarray:
        """The tensor as float32, exact for every element type."""
        raw = self._read()
        if self.element is Element.BF16:
            return (raw.astype(np.uint32) << 16).view(np.float32)
        return raw.astype(np.float32, copy=False)

    def read_bf16(self) -> np.ndarray:
        """The bits of the tensor as bfloat16 (uint16), rounded to nearest even."""
        if self.element is Element.BF16:
            return self._read()
        bits = self.read_f32().view(np.uint32)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)

    def _read(self) -> np.ndarray:
        count = int(np.prod(self.shape, dtype=np.int64))
        raw = np.fromfile(self.path, RAW_DTYPE[self.element], count, offset=self.offset)
        if raw.size != count:
            raise ConfigError(f"{self.path}: {self.name}: the file ended while it was read")
        return raw.reshape(self.shape)


def list_tensors(path: Path) -> dict[str, StoredTensor]:
    """The tensors of a file by name. Raises ConfigError unless all lie inside the file."""
    header, data_start, data_bytes = _read_header(path)
    tensors: dict[str, StoredTensor] = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        try:
            element, shape = Element(entry["dtype"]), tuple(int(size) for size in entry["shape"])
            begin, end = (int(edge) for edge in entry["data_offsets"])
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(
                f"{path}: {name}: {error}; allowed element types are F32, BF16, F16"
            ) from error
        num_bytes = int(np.prod(shape, dtype=np.int64)) * RAW_DTYPE[element].itemsize
        if min(shape, default=1) < 1 or not 0 <= begin <= end or end - begin != num_bytes:
            raise ConfigError(f"{path}: {name}: bytes {begin}..{end} do not hold {list(shape)}")
        if end > data_bytes:
            raise ConfigError(
                f"{path}: truncated: {name} ends at byte {end} of data, the file has {data_bytes}"
            )
        tensors[name] = StoredTensor(
            name=name, path=path, element=element, shape=shape, offset=data_start + begin
        )
    return tensors


def _read_header(path: Path) -> tuple[dict[str, Any], int, int]:
    """Header, offset of the data, bytes of data. Raises ConfigError."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if not 2 <= length <= min(size - 8, MAX_HEADER_BYTES):
                raise ConfigError(f"{path}: truncated or not safetensors ({size} bytes)")
            header = json.loads(file.read(length))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from error
    except ValueError as error:
        raise ConfigError(f"{path}: not safetensors: {error}") from error
    if not isinstance(header, dict):
        raise ConfigError(f"{path}: not safetensors: the header is not an object")
    return header, 8 + length, size - 8 - length


def weight_files(path: Path) -> list[Path]:
    index = path / "model.safetensors.index.json"
    if not index.exists():
        return [path / "model.safetensors"]
    names = read_json(index).get("weight_map")
    if not isinstance(names, dict) or not names:
        raise ConfigError(f"{index}: no weight_map")
    return [path / str(name) for name in sorted(set(names.values()))]


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file. Raises ConfigError with the file's name."""
    try:
        data = json.loads(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from error
    except ValueError as error:
        raise ConfigError(f"{path}: not JSON: {error}") from error
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: not a JSON object")
    return data


def holds_adapter(path: Path) -> bool:
    """True for a PEFT adapter, False for a full checkpoint. Raises ConfigError if there is no such
    directory."""
    if not path.is_dir():
        raise ConfigError(f"{path}: no such directory of weights")
    return (path / ADAPTER_CONFIG).exists()


def read_lora_config(path: Path) -> dict[str, Any]:
    """The adapter's config. Raises ConfigError unless it is a LoRA adapter."""
    where = path / ADAPTER_CONFIG
    config = read_json(where)
    if (kind := config.get("peft_type")) != "LORA":
        raise ConfigError(f"{where}: peft_type is {kind!r}; allowed is 'LORA'")
    return config


def check_names(
    path: Path, *, found: Set[str], needed: Set[str], named: Mapping[str, str] | None = None
) -> None:
    """Raise ConfigError unless a directory holds exactly the tensors that are needed. `named`:
    names in the files, if `found` are others."""
    if missing := sorted(needed - found):
        raise ConfigError(f"{path}: {len(missing)} tensors missing, the first is {missing[0]}")
    if extra := sorted(found - needed):
        first = (named or {}).get(extra[0], extra[0])
        raise ConfigError(f"{path}: {len(extra)} tensors have no place, the first is {first}")


def one_line(error: Exception) -> str:
    """The beginning of a library's error message, in one line."""
    return " ".join(str(error).split())[:300]
