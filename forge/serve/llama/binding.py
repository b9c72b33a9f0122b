"""llama.cpp's C functions: llama-cpp-python's ctypes module, a few functions that it does not
declare, its log.

Called by `model` only. Promises: llama.cpp's output goes to our logger; warnings and errors are
kept for the next error message; nothing here runs before `start`, so a process that only converts
never loads a backend.

Why ctypes calls of our own: writing new weights over the old needs the addresses of the model's
tensors and ggml's tensor functions, which llama-cpp-python does not declare. Pinned to
llama-cpp-python 0.3.36: structs are passed by value, so every version needs its own binding.
"""

from __future__ import annotations

import ctypes
import importlib
import logging
from collections import deque
from functools import cache
from pathlib import Path
from typing import Any

from forge.errors import MachineError, pip_install

logger = logging.getLogger(__name__)

TENSOR_MAP_SYMBOL = "_Z29llama_internal_get_tensor_mapB5cxx11PK11llama_model"
"""Exported by libllama but not declared in llama.h: the `std::vector<std::pair<std::string,
ggml_tensor *>> const &` of a model."""
TENSOR_MAP_STRIDE = 40
"""Bytes of one pair: std::string of libstdc++ (32) and pointer (8)."""
EXPECTED = "dummy tokens"
"""Part of a warning about every model without a vocabulary, as ours are."""
LOG_ERROR = 4
LOG_WARNING = 3

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
    """An error with llama.cpp's last warnings and errors."""
    said = "; ".join(_recent)
    _recent.clear()
    return MachineError(f"{what}{': ' + said if said else ''}")


@cache
def start() -> Binding:
    """Load the library once in this process. Raises MachineError if it cannot be loaded."""
    return Binding()
