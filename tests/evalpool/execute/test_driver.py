"""The table of driver calls: CUDA's names, HIP's, and refusals. The library is made up."""

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from forge.evalpool.judge.driver import driver as module
from forge.evalpool.judge.driver.driver import (
    MIN_ROCM,
    NAMES,
    Driver,
    DriverError,
    LaunchConfig,
    MapSpec,
    Unsupported,
    aligned_map,
)


class Library:
    """Has the symbols of one driver; notes the calls; fails with given codes."""

    def __init__(self, column: int, *, codes: dict[str, int] | None = None) -> None:
        self.symbols = {names[column] for names in NAMES.values()}
        self.codes = codes or {}
        self.asked: list[tuple[str, tuple[Any, ...]]] = []

    def __getattr__(self, symbol: str) -> Callable[..., int]:
        if symbol not in self.symbols:
            raise AttributeError(symbol)

        def call(*arguments: Any) -> int:
            self.asked.append((symbol, arguments))
            return self.codes.get(symbol, 0)

        return call


def cuda(**codes: int) -> tuple[Driver, Library]:
    library = Library(0, codes=codes)
    return Driver("cuda", library), library


@pytest.mark.parametrize(("kind", "symbol"), [("cuda", "cuMemUnmap"), ("hip", "hipMemUnmap")])
def test_a_call_goes_by_its_drivers_name(kind: str, symbol: str) -> None:
    library = Library(("cuda", "hip").index(kind))
    Driver(kind, library).unmap(4096, 512)
    ((asked, arguments),) = library.asked
    assert asked == symbol
    assert [one.value for one in arguments] == [4096, 512]


def rocm(*lacking: str, **codes: int) -> tuple[Driver, Library]:
    """HIP's driver on a ROCm that lacks symbols."""
    library = Library(1, codes=codes)
    library.symbols -= {*lacking}
    return Driver("hip", library), library


GRID, BLOCK, SHARED, STREAM, FUNCTION = (2, 3, 4), (128, 1, 1), 99, 5, 7
CONFIG = LaunchConfig(GRID, BLOCK, SHARED, STREAM)


def test_hip_launches_by_its_plain_call() -> None:
    driver, library = rocm()
    driver.require_virtual_memory(0)
    driver.launch(FUNCTION, CONFIG, "arguments")
    ((asked, arguments),) = library.asked
    assert asked == "hipModuleLaunchKernel"
    given = [getattr(one, "value", one) for one in arguments]
    assert given == [FUNCTION, *GRID, *BLOCK, SHARED, STREAM, "arguments", None]


def test_a_hip_driver_without_a_needed_call_is_refused_by_its_name() -> None:
    driver, _ = rocm("hipMemCreate", "hipModuleLaunchKernel")
    oldest = "{}.{}".format(*MIN_ROCM)
    with pytest.raises(Unsupported, match=rf"hipModuleLaunchKernel, hipMemCreate.*{oldest}"):
        driver.require_virtual_memory(0)


def test_the_hip_library_is_the_one_that_torch_has_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = "/venv of me/torch/lib/libamdhip64.so"
    maps = tmp_path / "maps"
    maps.write_text(
        f"7f00-7f10 r-xp 00000000 fe:00 77 /lib/libc.so.6\n7f20-7f30 r 0 fe:0 7 {loaded}\n"
    )
    monkeypatch.setattr(ctypes, "CDLL", lambda path: path)
    monkeypatch.setattr(module, "MAPS", str(maps))
    assert module.open_library("hip") == loaded
    maps.unlink()
    assert module.open_library("hip") == "libamdhip64.so"


def test_what_hip_lacks_is_unsupported_or_left_out() -> None:
    library = Library(1)
    driver = Driver("hip", library)
    driver.reset_persisting()
    assert library.asked == []
    assert driver.parameter_sizes(1) is None
    value, _ = aligned_map()
    spec = MapSpec(data_type=7, shape=(4,), stride_bytes=(), box=(4,), swizzle=0)
    with pytest.raises(Unsupported, match="hip"):
        driver.encode_map(spec, address=16, target=value)


@pytest.mark.parametrize(("code", "is_fault"), [(1, False), (2, False), (700, True), (719, True)])
def test_a_refusal_names_call_and_code(code: int, is_fault: bool) -> None:
    driver, _ = cuda(cuStreamSynchronize=code)
    with pytest.raises(DriverError, match="cuStreamSynchronize") as caught:
        driver.synchronize(0)
    assert (caught.value.code, caught.value.is_fault) == (code, is_fault)


def test_a_driver_without_virtual_memory_is_refused() -> None:
    driver, library = cuda()  # the attribute stays 0
    with pytest.raises(Unsupported, match="virtual memory"):
        driver.require_virtual_memory(0)
    library.symbols.discard("cuMemCreate")
    with pytest.raises(Unsupported, match="cuMemCreate"):
        driver.require_virtual_memory(0)


def test_a_mapping_without_access_is_undone() -> None:
    driver, library = cuda(cuMemSetAccess=1)
    with pytest.raises(DriverError):
        driver.map(4096, 512, 7, device=0)
    assert [symbol for symbol, _ in library.asked if symbol != "cuGetErrorName"] == [
        "cuMemMap",
        "cuMemSetAccess",
        "cuMemUnmap",
    ]


@pytest.mark.parametrize(
    ("address", "num_bytes", "symbol"),
    [(16, 64, "cuMemsetD32Async"), (16, 63, "cuMemsetD8Async"), (17, 64, "cuMemsetD8Async")],
)
def test_a_fill_is_wide_where_it_can_be(address: int, num_bytes: int, symbol: str) -> None:
    driver, library = cuda()
    driver.fill(address, num_bytes, 0x7E, stream=0)
    ((asked, arguments),) = library.asked
    assert asked == symbol
    assert arguments[1].value == (0x7E7E_7E7E if symbol.endswith("32Async") else 0x7E)


def test_cuda_launches_by_its_structure() -> None:
    driver, library = cuda()
    assert ctypes.sizeof(CONFIG) == 56
    driver.launch(FUNCTION, CONFIG, None)
    assert [name for name, _ in library.asked] == ["cuLaunchKernelEx"]
