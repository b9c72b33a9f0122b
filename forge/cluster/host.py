"""The host of one child on a node, and its order. A Ray actor, made by the broker.

    start ─▶ hold: child runs ──▶ ended, with its reason and the last lines of its log
                        ▲ stop ends it in order; the actor's death ends it by lease and death signal

Ray runs the methods of an async actor in the event loop of one thread, which lives as long as the
process: children started there end with it (`thread_for_children`). Methods return plain JSON, also
for errors, so that the broker needs none of the node's classes. The supervisor makes the order; it
is sent through the broker as JSON. The child is the one that `open_pool`, `open_replicas` or
`open_trainer` starts at home; servers have a second listener for the supervisor
(`process.server.serving`).

Weights and checkpoints pass through Ray's object store, packed once: the broker puts each file in
chunks; a node fetches each chunk once, from any node that has it, and its hosts write it to their
disks. Promise: an unpacked directory is complete, or the call failed.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any
from zlib import crc32

import anyio
import anyio.to_thread
import numpy as np

from forge.cluster.nodes import import_ray, list_nodes, node_facts
from forge.config.schema import JudgeTable
from forge.errors import ForgeError, MachineError
from forge.evalpool.capacity import GPU_CAPACITY, seat_cores
from forge.evalpool.keeper import judge_spec
from forge.evalpool.pool import CPU_CAPACITY
from forge.origin import source_digest
from forge.process.child import Child, ChildSpec, open_child, thread_for_children
from forge.process.devices import VISIBILITY_VARIABLES, Gpu, inventory
from forge.process.gpu_locks import claim
from forge.process.lease import take_parents_priority
from forge.process.server.serving import port_file
from forge.process.sockets import open_private_dir
from forge.serve.replicas import spec_elsewhere
from forge.train.handle import FAILURE, ranks_spec

WORK = "work"
"""Directory of a child's own files, in its host's."""

CHUNK_BYTES = 32 << 20
"""Bytes of one object. Two fit into the smallest object store that Ray makes (75 MB): for an object
that is larger than a store Ray waits two seconds before it takes a disk, on each node."""

Manifest = Sequence[tuple[str, Sequence[Any]]]
"""Name of each file, relative to the directory, and the objects of its chunks."""


def weights_key(source: Path) -> str:
    """Identifies the content of a directory or file, by names, sizes and times. Raises
    MachineError."""
    found = hashlib.sha256(str(source.absolute()).encode())
    with _readable(source):
        for name, path in _files(source).items():
            stat = path.stat()
            found.update(f"{name}\0{stat.st_size}\0{stat.st_mtime_ns}\0".encode())
    return found.hexdigest()[:16]


def pack(source: Path, put: Callable[[Any], Any]) -> Manifest:
    """The files of a directory, or one file, as objects. `put` stores one object. Raises
    MachineError."""
    with _readable(source):
        return [
            (name, [put(chunk) for chunk in _chunks(path)]) for name, path in _files(source).items()
        ]


@contextmanager
def _readable(source: Path) -> Generator[None]:
    try:
        yield
    except OSError as error:
        raise MachineError(f"{source}: it cannot be read for a node: {error}") from error


async def unpack(manifest: Manifest, folder: Path) -> None:
    """Writes the files of a manifest into a new directory. Raises MachineError."""
    for name, chunks in manifest:
        path = folder / _checked(name)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as file:
                for chunk in chunks:
                    await anyio.to_thread.run_sync(file.write, memoryview(await chunk))
        except OSError as error:
            raise MachineError(f"{path}: weights cannot be written: {error}") from error


def _files(source: Path) -> dict[str, Path]:
    """The files by their name on the other side."""
    if not source.is_dir():
        return {source.name: source}
    paths = sorted(path for path in source.rglob("*") if path.is_file())
    return {path.relative_to(source).as_posix(): path for path in paths}


def _chunks(path: Path) -> list[Any]:
    size = path.stat().st_size
    starts = range(0, max(size, 1), CHUNK_BYTES)
    return [
        np.fromfile(path, np.uint8, count=min(CHUNK_BYTES, size - start), offset=start)
        for start in starts
    ]


def _checked(name: str) -> str:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        raise MachineError(f"weights: found the file name {name!r}; a name below the directory")
    return name


def touch(kept: dict[str, Any], key: str, *, num: int) -> list[Any]:
    """Makes a key the latest of those kept; returns the values that it drops to keep `num`."""
    kept[key] = kept.pop(key)
    return [kept.pop(old) for old in list(kept)[:-num]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    run: str
    """Name of the run, for the claim on the node's GPUs."""
    name: str
    role: str
    """judge of the pool, engine of a replica, or trainer: ranks of one."""
    index: int
    token: str
    """Token of the run, which the child asks for."""
    sources: str
    """Digest of the supervisor's sources, which the node's must equal."""
    num_gpus: int
    shares_gpu: bool = False
    """True if its card may have another child of the run."""
    settings: Mapping[str, Any]
    """The table of the role, as JSON, and what else its child needs."""
    files: Mapping[str, str] = field(default_factory=dict[str, str])
    """Directories and files that the child needs, by the key of its config: paths of the
    supervisor, which the broker replaces by the directories on the node that it copied them to."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The part of a node that a host has."""

    ip: str
    folder: Path
    """Private directory for the child's socket and log."""
    gpus: Sequence[Gpu]
    num_neighbours: int
    """Hosts of the same kind that the node has room for, with which its cores are shared."""

    @property
    def work(self) -> Path:
        path = self.folder / WORK
        path.mkdir(exist_ok=True)
        return path

    @property
    def uuids(self) -> list[str]:
        return [gpu.uuid for gpu in self.gpus]


def child_of(order: Order, place: Place) -> ChildSpec:
    """The child of an order on this node. Raises MachineError if the node cannot run it."""
    spec = {"judge": _judge, "engine": _engine, "trainer": _trainer}[order.role](order, place)
    network = {"host": place.ip, "token": order.token}
    return replace(spec, config={**spec.config, "network": network})


def _judge(order: Order, place: Place) -> ChildSpec:
    gpu = place.gpus[0] if place.gpus else None
    cores = sorted(os.sched_getaffinity(0))
    number = order.index if gpu is None else gpu.index
    return judge_spec(
        order.name,
        table=JudgeTable.model_validate(order.settings["table"]),
        socket_dir=place.folder,
        log_dir=place.folder,
        capacity=CPU_CAPACITY if gpu is None else GPU_CAPACITY,
        gpu=gpu,
        cores=seat_cores(
            cores,
            seat=number,
            num_seats=max(1, place.num_neighbours),
            offset=crc32(order.run.encode()),
        ),
    )


def _engine(order: Order, place: Place) -> ChildSpec:
    return spec_elsewhere(
        order.settings, index=order.index, model_dir=order.files["model_dir"],
        folder=place.folder, work=place.work, gpus=place.uuids, shares_gpu=order.shares_gpu,
    )  # fmt: skip


def _trainer(order: Order, place: Place) -> ChildSpec:
    return ranks_spec(
        order.name, order.settings["job"], files=order.files, address=place.ip,
        folder=place.folder, work=place.work, gpus=place.uuids,
    )  # fmt: skip


NEWS_S = 5.0
"""Maximum wait for news before an empty answer."""
NEWS_PAUSE_S = 0.2
KEPT_WEIGHTS = 4
"""Directories on a node's disk for each host: a checkpoint and two adapters of an engine, or the
files of a trainer. Loaded files stay readable after their deletion."""
MAX_LOG_BYTES = 64 * 1024


class Host:
    """Starts one child and keeps it until `stop`, its end, or the end of this process."""

    def __init__(self, ip: str, num_neighbours: int) -> None:
        """Prepare a host on the node with address `ip`."""
        self._ip, self._num_neighbours = ip, num_neighbours
        self._stack = ExitStack()
        self._folder = self._stack.enter_context(open_private_dir(Path(tempfile.gettempdir())))
        self._log = self._folder / "none.log"
        self._opened = anyio.Event()
        self._child: Child | None = None
        self._port = ""
        self._ended: str | None = None
        self._error: dict[str, str] = {}
        self._weights: dict[str, Path] = {}

    async def ready(self) -> None:
        """Nothing; its answer shows that a node has made the host."""

    async def describe(self, needs: Mapping[str, Sequence[str]]) -> dict[str, Any]:
        """Facts about this node, and a port where the supervisor can try to reach it until the host
        ends."""
        family = socket.AF_INET6 if ":" in self._ip else socket.AF_INET
        listener = self._stack.enter_context(socket.create_server((self._ip, 0), family=family))
        return {**node_facts(self._ip, needs), "port": listener.getsockname()[1]}

    async def receive(self, refs: Sequence[Any]) -> int:
        """Fetch objects to this node; returns their bytes."""
        return sum([len(await ref) for ref in refs])

    async def hold(self, order: Mapping[str, Any]) -> None:
        try:
            with thread_for_children():
                await self._hold(Order(**order))
        except ForgeError as error:
            self._error = {"kind": type(error).__name__, "error": str(error)}
            self._ended = str(error)
        except BaseException as error:
            self._error = {"kind": "MachineError", "error": f"{type(error).__name__}: {error}"}
            self._ended = str(error)
            raise
        finally:
            self._opened.set()
            self._ended = self._ended or "it was stopped"

    async def _hold(self, order: Order) -> None:
        self._check(order)
        gpus = inventory() if order.num_gpus else ()
        if len(gpus) != order.num_gpus:
            raise MachineError(
                f"node {self._ip}: Ray gave {order.num_gpus} GPUs, and {len(gpus)} answer here"
            )
        with claim(gpus, run=order.run, is_shared=order.shares_gpu):
            place = Place(
                ip=self._ip, folder=self._folder, gpus=gpus, num_neighbours=self._num_neighbours
            )
            spec = child_of(order, place)
            self._log = spec.log_path
            async with open_child(spec) as child:
                if spec.socket_path is not None:
                    self._port = port_file(spec.socket_path).read_text()
                self._child = child
                self._opened.set()
                self._ended = await child.wait()

    def _check(self, order: Order) -> None:
        if (found := source_digest()) != order.sources:
            raise MachineError(
                f"node {self._ip} has other sources of forge ({found}) than this machine "
                f"({order.sources}); install the same commit in {sys.executable} there"
            )

    async def bring(self, key: str, manifest: Manifest) -> dict[str, Any]:
        """Write files to this node's disk; returns their directory. The last ones stay."""
        folder = self._folder / f"weights-{key}"
        try:
            if key not in self._weights:
                await unpack(manifest, folder)
                self._weights[key] = folder
            for old in touch(self._weights, key, num=KEPT_WEIGHTS):
                shutil.rmtree(old, ignore_errors=True)
        except MachineError as error:
            shutil.rmtree(folder, ignore_errors=True)
            return {"error": f"node {self._ip}: {error}", "kind": "MachineError"}
        return {"path": str(folder)}

    async def opened(self) -> dict[str, Any]:
        """The child's address once it is ready, or the error of its start."""
        await self._opened.wait()
        if self._child is None:
            return self._error or {"kind": "ChildDied", "error": "it was stopped"}
        host = f"[{self._ip}]" if ":" in self._ip else self._ip
        return {
            "url": f"http://{host}:{self._port}" if self._port else "",
            "pid": self._child.pid,
            "devices": self._child.spec.devices,
            "host": socket.gethostname(),
        }

    async def news(self, offset: int) -> dict[str, Any]:
        """The log from `offset` on, and why the child has ended. Waits until there is something."""
        with anyio.move_on_after(NEWS_S):
            while self._ended is None and len(self._read(offset)) == 0:  # noqa: ASYNC110 - a file
                await anyio.sleep(NEWS_PAUSE_S)
        text, failure = self._read(offset), self._folder / WORK / FAILURE
        return {
            "log": text,
            "ended": None if len(text) == MAX_LOG_BYTES else self._ended,
            "failure": json.loads(failure.read_text()) if failure.exists() else None,
        }

    def _read(self, offset: int) -> bytes:
        if not self._log.exists():
            return b""
        with self._log.open("rb") as file:
            file.seek(offset)
            return file.read(MAX_LOG_BYTES)

    async def dump_stacks(self) -> None:
        if self._child is not None:
            self._child.dump_stacks()

    async def stop(self) -> None:
        """End the child in order; returns when it is gone and its files are removed."""
        if self._child is not None:
            await self._child.stop()
        self._stack.close()


class NodeHost(Host):
    """A host in a Ray actor."""

    def __init__(self, *, is_on_gpu: bool) -> None:
        """Read the node's facts from Ray. `is_on_gpu`: its neighbours are those on GPUs."""
        ray = import_ray()
        here = next(node for node in list_nodes(ray) if node.is_here)
        super().__init__(here.ip, int(here.gpus if is_on_gpu else here.cpus))

    async def hold(self, order: Mapping[str, Any]) -> None:
        take_parents_priority()
        await super().hold(order)

    async def describe(self, needs: Mapping[str, Sequence[str]]) -> dict[str, Any]:
        """Facts about this node, with its cards and the nice value of its children."""
        for name in VISIBILITY_VARIABLES:  # Ray hides all cards from a host that has none
            os.environ.pop(name, None)
        cards = [
            {"name": gpu.name, "used_bytes": gpu.memory_bytes - gpu.free_bytes}
            for gpu in inventory()
        ]
        return {**await super().describe(needs), "nice": take_parents_priority(), "cards": cards}
