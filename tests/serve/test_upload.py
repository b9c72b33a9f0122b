"""Weights over HTTP, without an engine: files by content, claims, and what interrupts them."""

import hashlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import anyio
import anyio.abc
import httpx
import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware

import forge.serve.upload.sending
from forge.config.schema import ServeTable
from forge.errors import ConfigError, ForgeError, MachineError, Stalled
from forge.process.ask import open_url_client
from forge.process.server.door import Door, Refused
from forge.process.server.serving import serve_task
from forge.process.sockets import open_socket_dir
from forge.serve.remote.url_client import OtherWeights, UrlClient
from forge.serve.upload.files import Digests, read_manifest
from forge.serve.upload.receiving import (
    CLAIM_SILENT_S,
    RESERVE_BYTES,
    Claims,
    HeldFiles,
    WeightEndpoints,
)
from forge.serve.upload.sending import MAX_SENDS, WeightSender
from forge.serve.weights import Weights

TOKEN = "sesame"
NUM_BYTES = 300_000


class Engines:
    """Fake replicas that read what they load."""

    features = frozenset({"prefix_cache"})

    def __init__(self) -> None:
        self.weights = Weights(full=Path("nowhere"))
        self.loaded: list[dict[str, bytes]] = []
        self.refusal = ""

    async def publish_weights(self, weights: Weights) -> None:
        if self.refusal:
            raise ConfigError(self.refusal)
        self.weights = weights
        self.loaded.append({path.name: path.read_bytes() for path in weights.full.iterdir()})

    async def probe(self, prompt_ids: Any, completion_ids: Any) -> list[list[float]]:
        return [[-1.0] * len(completion_ids)] * 2


class Host:
    """A server on a Unix socket, which can be away and be started again."""

    def __init__(self, folder: Path, sockets: Path, *, forge: str = "1") -> None:
        self.path = sockets / "s.sock"
        self.url = f"unix:{self.path}"
        self.engines = Engines()
        self.num_started = 0
        self.puts: list[str] = []
        """Path of each upload that began."""
        self.garbled = 0
        """Uploads whose bytes will be changed on the way."""
        self._folder, self._forge = folder, forge
        self._scope = anyio.CancelScope()

    async def start(self, tasks: anyio.abc.TaskGroup) -> None:
        self.num_started += 1
        self.endpoints = WeightEndpoints(
            cast("Any", self.engines), start=self.engines.weights, table=ServeTable(),
            folder=self._folder / str(self.num_started), forge=self._forge,
        )  # fmt: skip
        self.endpoints._own.clear()
        app = Starlette(routes=self.endpoints.routes(), middleware=[Middleware(Door, token=TOKEN)])
        self._scope, self._ended = anyio.CancelScope(), anyio.Event()

        async def run(*, task_status: anyio.abc.TaskStatus[None]) -> None:
            with self._scope:
                await serve_task(
                    cast("Any", self._between(app)), self.path, task_status=task_status
                )
            self._ended.set()

        await tasks.start(run)

    async def stop(self) -> None:
        self._scope.cancel()
        await self._ended.wait()

    def _between(self, app: Any) -> Any:
        async def between(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] != "http" or scope["method"] != "PUT":
                return await app(scope, receive, send)
            self.puts.append(scope["path"])
            garble, self.garbled = self.garbled > 0, max(self.garbled - 1, 0)

            async def changed() -> Any:
                message = await receive()
                if garble and message.get("body"):
                    message = {**message, "body": bytes(len(message["body"]))}
                return message

            await app(scope, changed, send)

        return between


@asynccontextmanager
async def hosting(tmp_path: Path, **options: Any) -> AsyncIterator[tuple[Host, Any]]:
    with open_socket_dir() as sockets, anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            host = Host(tmp_path / "host", sockets, **options)
            await host.start(tasks)
            yield host, tasks
            tasks.cancel_scope.cancel()


@asynccontextmanager
async def sending(
    host: Host, *, owner: str = "run a", token: str = TOKEN, patience_s: float = 20.0
) -> AsyncIterator[WeightSender]:
    async with open_url_client(host.url, timeout_s=20, token=token) as http:
        yield WeightSender(
            UrlClient(host.url, http, timeout_s=20), http,
            owner=owner, forge="1", digests=Digests(), patience_s=patience_s,
        )  # fmt: skip


def weights(tmp_path: Path, name: str, *, version: int) -> Weights:
    """A directory whose tokenizer is the same in each."""
    path = tmp_path / name
    path.mkdir()
    content = hashlib.sha256(name.encode()).digest() * (NUM_BYTES // 32)
    (path / "model.safetensors").write_bytes(content)
    (path / "tokenizer.json").write_text("{}")
    (path / "pytorch_model.bin").write_bytes(b"a pickle, which is not sent")
    return Weights(full=path, version=version, full_version=version)


async def test_only_files_that_the_server_lacks_are_sent(tmp_path: Path) -> None:
    first, second = (weights(tmp_path, name, version=n) for n, name in enumerate("ab", 1))
    async with hosting(tmp_path) as (host, _), sending(host) as sender:
        await sender.claim()
        await sender.serve(first)
        whole = sender.sent_bytes
        await sender.serve(first)
        assert sender.sent_bytes == whole
        await sender.serve(second)
        assert sender.sent_bytes - whole == (second.full / "model.safetensors").stat().st_size
        assert [sorted(each) for each in host.engines.loaded] == [
            ["model.safetensors", "tokenizer.json"]
        ] * 3
        assert (
            host.engines.loaded[2]["model.safetensors"]
            == (second.full / "model.safetensors").read_bytes()
        )
        assert (host.engines.weights.version, host.engines.weights.full_version) == (2, 2)
        held = tmp_path / "host" / "1"
        assert len(list((held / "blobs").iterdir())) == 2  # those of version 1 alone are deleted
        assert [each.name for each in (held / "weights").iterdir()] == ["2-v2"]
        assert await sender.scores({"prompt_ids": [1], "completion_ids": [2]}) == [[-1.0]] * 2


async def test_an_upload_that_was_cut_off_continues_with_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forge.serve.upload.sending, "PIECE_BYTES", 50_000)
    wanted = weights(tmp_path, "a", version=1)
    async with hosting(tmp_path) as (host, _), sending(host) as sender:
        await sender.claim()
        pieces = sender._pieces

        async def cut(path: Path) -> AsyncIterator[bytes]:
            monkeypatch.setattr(sender, "_pieces", pieces)
            found = pieces(path)
            for _ in range(3):
                yield await anext(found)
            await found.aclose()
            raise httpx.WriteError("the network is away")

        monkeypatch.setattr(sender, "_pieces", cut)
        await sender.serve(wanted)
        assert host.puts[0] == host.puts[1] != host.puts[2]
        assert not list((tmp_path / "host").rglob("*.part"))
        found = host.engines.loaded[0]["model.safetensors"]
        assert found == (wanted.full / "model.safetensors").read_bytes()


async def test_bytes_that_arrive_changed_are_refused_and_sent_again(tmp_path: Path) -> None:
    wanted = weights(tmp_path, "a", version=1)
    async with hosting(tmp_path) as (host, _), sending(host) as sender:
        await sender.claim()
        host.garbled = MAX_SENDS
        with pytest.raises(MachineError, match="bytes that arrived have another digest"):
            await sender.serve(wanted)
        assert (len(host.puts), host.engines.loaded) == (MAX_SENDS, [])
        host.garbled = MAX_SENDS - 1
        await sender.serve(wanted)
        assert len(host.engines.loaded) == 1


async def test_a_network_that_goes_away_and_returns_delays_a_publish(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forge.serve.upload.sending, "RETRY_PAUSE_S", 0.05)
    wanted = weights(tmp_path, "a", version=1)
    async with hosting(tmp_path) as (host, tasks), sending(host) as sender:
        await sender.claim()
        away = host.path.with_name("away")
        host.path.rename(away)

        async def return_later() -> None:
            await anyio.sleep(0.4)
            away.rename(host.path)

        tasks.start_soon(return_later)
        await sender.serve(wanted)
        assert host.engines.weights.version == 1
    async with hosting(tmp_path / "other") as (host, _), sending(host, patience_s=0.2) as sender:
        await sender.claim()
        await host.stop()
        with pytest.raises(Stalled, match=r"unix:.* hung up; .*; no progress for 0"):
            await sender.serve(wanted)


async def test_a_server_that_was_started_again_has_to_be_claimed_again(tmp_path: Path) -> None:
    wanted = weights(tmp_path, "a", version=1)
    async with hosting(tmp_path) as (host, tasks), sending(host) as sender:
        await sender.claim()
        await sender.serve(wanted)
        await host.stop()
        await host.start(tasks)
        with pytest.raises(OtherWeights, match="it was started again"):
            await sender.serve(wanted)
        await sender.claim()
        await sender.serve(wanted)
        assert len(host.engines.loaded) == 2


async def test_a_second_run_is_refused_with_the_name_of_the_first(tmp_path: Path) -> None:
    wanted = weights(tmp_path, "a", version=1)
    async with hosting(tmp_path) as (host, _), sending(host) as first:
        await first.claim()
        async with sending(host, owner="run b") as second:
            with pytest.raises(MachineError, match=r"run a publishes here \(last seen 0 s ago\)"):
                await second.claim()
            await first.release()
            await second.claim()
            with pytest.raises(OtherWeights, match="run b publishes here now"):
                await first.serve(wanted)
        async with sending(host, owner="run b") as resumed:
            await resumed.claim()  # the same run, after its end without a word
            await resumed.serve(wanted)


async def test_refusals_are_one_line_each(tmp_path: Path) -> None:
    wanted = weights(tmp_path, "a", version=1)
    async with hosting(tmp_path, forge="2") as (host, _):
        async with sending(host) as sender:
            with pytest.raises(ConfigError, match=r"here is forge 2, the run has 1; install the"):
                await sender.claim()
        async with sending(host, token="wrong") as sender:
            with pytest.raises(ConfigError, match=r"bearer token is needed; serve\.api_key_env"):
                await sender.claim()
    async with hosting(tmp_path / "b") as (host, _), sending(host) as sender:
        await sender.claim()
        host.endpoints._held._free_bytes = lambda _path: RESERVE_BYTES + 1000
        with pytest.raises(MachineError, match=r"disk full: the upload needs 0\.00 GB in .*blobs"):
            await sender.serve(wanted)
        host.endpoints._held._free_bytes = lambda _path: RESERVE_BYTES + 10 * NUM_BYTES
        host.engines.refusal = "3 tensors missing"
        with pytest.raises(ConfigError, match="3 tensors missing"):
            await sender.serve(wanted)
        with pytest.raises(ConfigError, match=r"no \.safetensors files"):
            await sender.serve(Weights(full=tmp_path / "b"))
        errors: list[str] = []
        for name in ("../up.json", "x.py", ".hidden.json", "a/b.json"):
            entry = {"name": name, "sha256": "0" * 64, "num_bytes": 1}
            body = json.loads(json.dumps({"files": [entry]}))
            answer = await sender._send("/weights/files", body, timeout_s=5)
            assert answer.status == 400
            errors.append(answer.json()["error"])
        assert all("a plain name that ends in" in error for error in errors)
    assert not host.engines.loaded


def test_a_directory_of_files_that_were_not_all_sent_is_refused(tmp_path: Path) -> None:
    entry = {"name": "b.json", "sha256": "1" * 64, "num_bytes": 100}
    with pytest.raises(ConfigError, match=r"1 files were not sent, the first is b\.json"):
        HeldFiles(tmp_path).assemble(read_manifest([entry]), version=4)


async def test_an_upload_larger_than_declared_or_than_the_disk_is_refused(tmp_path: Path) -> None:
    held = HeldFiles(tmp_path, free_bytes=lambda _path: RESERVE_BYTES + 10)

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(3):
            yield b"x" * 5

    with pytest.raises(MachineError, match="another digest"):
        await held.receive("0" * 64, pieces(), num_bytes=10)
    with pytest.raises(MachineError, match="disk full"):
        await held.receive("0" * 64, pieces(), num_bytes=11)
    assert not list(tmp_path.rglob("*.part"))


def test_a_silent_run_loses_its_claim_and_a_living_one_keeps_it() -> None:
    claims = Claims()
    first = claims.take("a", now=0.0)
    claims.require(first, now=CLAIM_SILENT_S - 1)
    with pytest.raises(Refused, match="a publishes here"):
        claims.take("b", now=2 * CLAIM_SILENT_S - 2)
    claims.take("b", now=2 * CLAIM_SILENT_S)
    with pytest.raises(Refused, match="b publishes here now"):
        claims.require(first, now=2 * CLAIM_SILENT_S)
    with pytest.raises(Refused, match="b publishes here"):
        claims.take("a", now=2 * CLAIM_SILENT_S)


def test_a_manifest_is_checked_entry_by_entry() -> None:
    good = {"name": "a.json", "sha256": "0" * 64, "num_bytes": 1}
    for wrong in ({"name": 3}, {"sha256": "xyz"}, {"num_bytes": -1}, {"num_bytes": True}):
        with pytest.raises(ForgeError, match=r"files[.\d\w]*: found "):
            read_manifest([{**good, **wrong}])
    for wrong in ([], "a", None, [good, good], [{}]):
        with pytest.raises(ConfigError, match=r"^files"):
            read_manifest(wrong)
