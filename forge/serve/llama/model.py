"""A llama.cpp model with its context: weights, KV memory by sequence, one decode at a time; and the
C functions of llama.cpp.

The only file that calls llama.cpp, from one thread only. Promises: every argument on which
llama.cpp would abort() is checked before the call (never more tokens in a batch than the context
holds, nor more rows of logits than it reserves); refused weights leave the old ones in place;
llama.cpp's output goes to our logger, and its warnings and errors are kept for the next error
message; no backend is loaded before `load_binding`, so never by a process that only converts.

KV is per sequence, not unified: attention then scans only a sequence's own cells (up to 1.9×
faster, measured), and every sequence has its room from the start. Sequences are copied by saved
state, since `llama_memory_seq_cp` would copy the whole buffer.

Why ctypes calls of our own: writing new weights over the old needs the addresses of the model's
tensors and ggml's tensor functions, which llama-cpp-python does not declare. Pinned to
llama-cpp-python 0.3.36: structs are passed by value, so every version needs its own binding.
"""

from __future__ import annotations

import ctypes
import importlib
import logging
import os
from collections import deque
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from forge.errors import ConfigError, MachineError, pip_install
from forge.serve.architectures import CELL_BLOCK
from forge.serve.llama.checkpoint import (
    Adapter,
    Checkpoint,
    Precision,
    open_weights,
    write_adapter,
    write_model,
)
from forge.serve.port import check_score

logger = logging.getLogger(__name__)

BATCH_TOKENS = 512
"""Maximum tokens of one decode. More gain nothing on CPU; fewer slow prompts down."""
MAX_SEQUENCES = 256
"""Compiled into llama.cpp (LLAMA_MAX_SEQ)."""
KV_F32, KV_F16 = 0, 1
FLASH_AUTO, FLASH_OFF = -1, 0
TENSOR_MAP_SYMBOL = "_Z29llama_internal_get_tensor_mapB5cxx11PK11llama_model"
"""Exported by libllama but not declared in llama.h: the `std::vector<std::pair<std::string,
ggml_tensor *>> const &` of a model."""
TENSOR_MAP_STRIDE = 40
"""Bytes of one pair: std::string of libstdc++ (32) and pointer (8)."""
EXPECTED = "dummy tokens"
"""Part of a warning about every model without a vocabulary, as ours are."""
LOG_ERROR = 4
LOG_WARNING = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    model_dir: Path
    work_dir: Path
    """Directory of GGUF files, which exist only while they are loaded."""
    context_tokens: int
    num_sequences: int = 1
    precision: Precision = Precision.EXACT
    threads: int = 1
    gpu_layers: int = 0


class LlamaModel:
    def __init__(self, settings: ModelSettings) -> None:
        if not 1 <= settings.num_sequences <= MAX_SEQUENCES:
            raise ConfigError(
                f"num_sequences: {settings.num_sequences}; allowed is 1 to {MAX_SEQUENCES}"
            )
        checkpoint = open_weights(settings.model_dir, served=None)
        assert isinstance(checkpoint, Checkpoint)
        where = str(checkpoint.path)
        checkpoint.layout.check_context(settings.context_tokens, where=where)
        self.settings, self.layout = settings, checkpoint.layout
        self.num_vocab = checkpoint.layout.vocab_size
        self.binding = load_binding()
        self._c = self.binding.c
        self._adapter: Any = None
        self._model: Any = None
        self._context: Any = None
        self._state = (ctypes.c_uint8 * 0)()
        self._load(checkpoint)

    def load_weights(self, path: Path) -> None:
        """Load a full checkpoint, or an adapter on the last full one. KV is dropped. Raises
        ConfigError, with the old weights still served, if the directory is not complete or belongs
        to another model."""
        weights = open_weights(path, served=self.layout)
        if isinstance(weights, Adapter):
            self._load_adapter(weights)
        elif self.can_update_in_place:
            self._update_in_place(weights)
        else:
            self._load(weights)
        self.clear()

    @property
    def can_update_in_place(self) -> bool:
        return bool(self._tensors)

    def _load(self, checkpoint: Checkpoint) -> None:
        """Load the new model and its context, then free the old one."""
        path = self.settings.work_dir / f"model-{os.getpid()}.gguf"
        write_model(checkpoint, path, self.settings.precision)
        try:
            params = self._c.llama_model_default_params()
            params.n_gpu_layers = self.settings.gpu_layers
            # Not mapped (read-only pages), not repacked: either would prevent updates in place.
            params.load_mode, params.use_extra_bufts = 0, False
            model = self._c.llama_model_load_from_file(os.fsencode(path), params)
        finally:
            path.unlink()
        if not model:
            raise failure(f"llama.cpp cannot load {checkpoint.path}")
        context = self._c.llama_init_from_model(model, self._context_params())
        if not context:
            self._c.llama_model_free(model)
            raise failure(f"llama.cpp cannot make a context for {checkpoint.path}")
        self.close()
        self._model, self._context = model, context
        self._memory = self._c.llama_get_memory(context)
        self._rows = self._rows_address = None
        self._tensors = self._find_tensors(checkpoint)

    def _context_params(self) -> Any:
        exact = self.settings.precision is Precision.EXACT
        cells = -(-self.settings.context_tokens // CELL_BLOCK) * CELL_BLOCK
        params = self._c.llama_context_default_params()
        params.n_ctx = cells * self.settings.num_sequences
        params.n_batch = params.n_ubatch = BATCH_TOKENS
        params.n_seq_max = params.n_outputs_max = self.settings.num_sequences
        params.n_threads = params.n_threads_batch = self.settings.threads
        params.type_k = params.type_v = KV_F32 if exact else KV_F16
        # Flash attention casts f32 KV to f16, so it is off for exact.
        params.flash_attn_type = FLASH_OFF if exact else FLASH_AUTO
        params.kv_unified = False
        # A layer with a sliding window keeps its window alone: sequences only grow.
        params.swa_full = False
        params.no_perf = True
        return params

    def _find_tensors(self, checkpoint: Checkpoint) -> dict[str, list[int]]:
        """Addresses for updates in place; empty unless names and sizes are those that we write."""
        found = self.binding.tensor_addresses(self._model) or {}
        if found.keys() != checkpoint.tensors.keys():
            logger.warning("weights will be reloaded: this build's tensor map is not understood")
            return {}
        for name, addresses in found.items():
            num_bytes = checkpoint.tensors[name].num_bytes(self.settings.precision)
            if any(self.binding.base.ggml_nbytes(address) != num_bytes for address in addresses):
                logger.warning("weights will be reloaded: %s is held in another form", name)
                return {}
        return found

    def _update_in_place(self, checkpoint: Checkpoint) -> None:
        # Everything is read and checked before the first byte is written.
        precision = self.settings.precision
        new = {name: tensor.read(precision) for name, tensor in checkpoint.tensors.items()}
        for name, array in new.items():
            for address in self._tensors[name]:
                self.binding.base.ggml_backend_tensor_set(
                    address, array.ctypes.data, 0, array.nbytes
                )
        self._set_adapter(None)

    def _load_adapter(self, adapter: Adapter) -> None:
        path = self.settings.work_dir / f"adapter-{os.getpid()}.gguf"
        write_adapter(adapter, path)
        try:
            new = self._c.llama_adapter_lora_init(self._model, os.fsencode(path))
        finally:
            path.unlink()
        # A failure is a NULL pointer object, which is false but not None.
        if not new:
            raise failure(f"llama.cpp cannot load the adapter {adapter.path}")
        self._set_adapter(new)

    def _set_adapter(self, new: Any) -> None:
        """Set the new adapter, then free the old one: the context holds raw pointers."""
        if new is None:
            self._c.llama_set_adapters_lora(self._context, None, 0, None)
        else:
            pointers = (self._c.llama_adapter_lora_p_ctypes * 1)(new)
            self._c.llama_set_adapters_lora(self._context, pointers, 1, (ctypes.c_float * 1)(1.0))
        if self._adapter is not None:
            self._c.llama_adapter_lora_free(self._adapter)
        self._adapter = new

    def decode(self, batch: DecodeBatch) -> np.ndarray:
        """Run a batch. Returns the requested logits in batch order, valid until the next call.
        [num_outputs, V]"""
        assert 0 < batch.size <= BATCH_TOKENS
        assert batch.num_outputs <= self.settings.num_sequences
        batch.c_batch.n_tokens = batch.size
        if (code := self._c.llama_decode(self._context, batch.c_batch)) != 0:
            raise failure(f"llama_decode answered {code}")
        return self._logits()[: batch.num_outputs]

    def _logits(self) -> np.ndarray:
        pointer = self._c.llama_get_logits(self._context)
        address = ctypes.cast(pointer, ctypes.c_void_p).value
        if self._rows is None or address != self._rows_address:
            shape = (self.settings.num_sequences, self.num_vocab)
            self._rows, self._rows_address = np.ctypeslib.as_array(pointer, shape=shape), address
        return self._rows

    def clear(self) -> None:
        self._c.llama_memory_clear(self._memory, False)

    def drop(self, sequence: int) -> None:
        """Drop the KV of a sequence. Never a part of it: a window has not kept what is before."""
        self._check(sequence)
        self._c.llama_memory_seq_rm(self._memory, sequence, 0, -1)

    def save(self, sequence: int) -> bytes:
        """Copy a sequence's KV. It can be restored under any id until the weights change."""
        self._check(sequence)
        size = self._c.llama_state_seq_get_size(self._context, sequence)
        if len(self._state) < size:
            self._state = (ctypes.c_uint8 * size)()
        written = self._c.llama_state_seq_get_data(self._context, self._state, size, sequence)
        if written == 0:
            raise failure(f"the KV of sequence {sequence} cannot be saved")
        return ctypes.string_at(self._state, written)

    def restore(self, sequence: int, state: bytes) -> None:
        self._check(sequence)
        buffer = ctypes.cast(ctypes.c_char_p(state), ctypes.POINTER(ctypes.c_uint8))
        if self._c.llama_state_seq_set_data(self._context, buffer, len(state), sequence) == 0:
            raise failure(f"the KV of sequence {sequence} cannot be restored")

    def _check(self, sequence: int) -> None:
        assert 0 <= sequence < self.settings.num_sequences

    def close(self) -> None:
        if self._context is None:
            return
        self._c.llama_free(self._context)
        if self._adapter is not None:
            self._c.llama_adapter_lora_free(self._adapter)
        self._c.llama_model_free(self._model)
        self._context = self._adapter = self._model = None


class DecodeBatch:
    """Columns of up to `capacity` tokens. Rows of logits are in the order of the requested
    outputs."""

    def __init__(self, binding: Binding, *, capacity: int) -> None:
        self.capacity, self.size, self.num_outputs = capacity, 0, 0
        self.token = np.zeros(capacity, np.int32)
        self.position = np.zeros(capacity, np.int32)
        self.sequence = np.zeros(capacity, np.int32)
        self.output = np.zeros(capacity, np.int8)
        self._num_sequences = np.ones(capacity, np.int32)
        first = self.sequence.ctypes.data
        self._sequence_pointers = (first + 4 * np.arange(capacity)).astype(np.uint64)
        int_p = ctypes.POINTER(ctypes.c_int32)
        self.c_batch: Any = binding.c.llama_batch(
            0,
            self.token.ctypes.data_as(int_p),
            None,
            self.position.ctypes.data_as(int_p),
            self._num_sequences.ctypes.data_as(int_p),
            self._sequence_pointers.ctypes.data_as(ctypes.POINTER(int_p)),
            self.output.ctypes.data_as(ctypes.POINTER(ctypes.c_int8)),
        )

    @property
    def room(self) -> int:
        return self.capacity - self.size

    def clear(self) -> None:
        self.size = self.num_outputs = 0

    def add_step(self, sequences: np.ndarray, tokens: np.ndarray, positions: np.ndarray) -> None:
        """Add one token of each sequence, with logits. The batch must be empty. All [R]."""
        end = sequences.size
        assert self.size == 0
        assert end <= self.capacity
        self.token[:end] = tokens
        self.position[:end] = positions
        self.sequence[:end] = sequences
        self.output[:end] = 1
        self.size = self.num_outputs = end

    def add_run(self, sequence: int, tokens: np.ndarray, start: int) -> None:
        """Add consecutive tokens of one sequence from position `start`, without logits."""
        begin, end = self.size, self.size + tokens.size
        assert end <= self.capacity
        self.token[begin:end] = tokens
        self.position[begin:end] = np.arange(start, start + tokens.size)
        self.sequence[begin:end] = sequence
        self.output[begin:end] = 0
        self.size = end

    def want_last(self, count: int = 1) -> None:
        self.output[self.size - count : self.size] = 1
        self.num_outputs += count


def score(
    model: LlamaModel, batch: DecodeBatch, prompt: np.ndarray, completion: np.ndarray, *,
    sequence: int,
) -> np.ndarray:  # fmt: skip
    """Log probability at temperature 1 of each completion token after all before it. [T]"""
    context_tokens = model.settings.context_tokens
    check_score(prompt, completion, num_vocab=model.num_vocab, context_tokens=context_tokens)
    tokens = np.concatenate([prompt, completion]).astype(np.int32)
    # Logits at position p score token p + 1: they are requested from the prompt's last token on.
    last, start, logprobs = prompt.size - 1, 0, []
    max_rows = min(batch.capacity, model.settings.num_sequences)
    try:
        while start < last:
            end = min(start + batch.capacity, last)
            batch.clear()
            batch.add_run(sequence, tokens[start:end], start)
            model.decode(batch)
            start = end
        while start < tokens.size - 1:
            end = min(start + max_rows, tokens.size - 1)
            batch.clear()
            batch.add_run(sequence, tokens[start:end], start)
            batch.want_last(end - start)
            logprobs.append(_logprobs(model.decode(batch), tokens[start + 1 : end + 1]))
            start = end
    finally:
        model.drop(sequence)
    return np.concatenate(logprobs)


def _logprobs(logits: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(axis=1, keepdims=True)
    total = np.log(np.exp(shifted).sum(axis=1, dtype=np.float64))
    return shifted[np.arange(tokens.size), tokens] - total


_recent: deque[str] = deque(maxlen=5)


def _take_log(level: int, text: bytes, _user: object) -> None:
    line = text.decode("utf-8", "replace").rstrip()
    if level in (LOG_WARNING, LOG_ERROR) and line and EXPECTED not in line:
        _recent.append(line)
        logger.warning("%s", line)


class Binding:
    """The loaded library. `c` is the ctypes module, `base` the ggml library with tensor access."""

    def __init__(self) -> None:
        try:
            self.c: Any = importlib.import_module("llama_cpp.llama_cpp")
            loader: Any = importlib.import_module("llama_cpp._ctypes_extensions")
            self.base: Any = loader.load_shared_library(
                "ggml-base", Path(self.c.__file__).parent / "lib"
            )
        except (ImportError, OSError, RuntimeError) as error:
            raise MachineError(
                f"llama_cpp cannot be loaded: {error}; `make setup` or {pip_install('llama')} "
                "builds it"
            ) from error
        self._log = self.c.llama_log_callback(_take_log)
        self.c.llama_log_set(self._log, None)
        self.c.llama_backend_init()
        base = self.base
        base.ggml_backend_tensor_set.argtypes = [ctypes.c_void_p] * 2 + [ctypes.c_size_t] * 2
        base.ggml_backend_tensor_set.restype = None
        base.ggml_nbytes.argtypes = [ctypes.c_void_p]
        base.ggml_nbytes.restype = ctypes.c_size_t
        base.ggml_get_name.argtypes = [ctypes.c_void_p]
        base.ggml_get_name.restype = ctypes.c_char_p

    def tensor_addresses(self, model: Any) -> dict[str, list[int]] | None:
        """Addresses of a model's ggml tensors by name. On a GPU an embedding that is also the
        output head has two. None if this build does not export the map or has another layout:
        weights are then reloaded."""
        function = getattr(self.c._lib, TENSOR_MAP_SYMBOL, None)
        if function is None:
            return None
        function.argtypes = [ctypes.c_void_p]
        function.restype = ctypes.POINTER(ctypes.c_void_p)
        vector = function(model)
        begin, end = vector[0] or 0, vector[1] or 0
        if not begin or (end - begin) % TENSOR_MAP_STRIDE:
            return None
        addresses: dict[str, list[int]] = {}
        for entry in range(begin, end, TENSOR_MAP_STRIDE):
            tensor = ctypes.c_void_p.from_address(entry + 32).value
            if tensor is None:
                return None
            addresses.setdefault(self.base.ggml_get_name(tensor).decode(), []).append(tensor)
        return addresses


def failure(what: str) -> MachineError:
    said = "; ".join(_recent)
    _recent.clear()
    return MachineError(f"{what}{': ' + said if said else ''}")


@cache
def load_binding() -> Binding:
    return Binding()
