"""`/v1/chat/completions` of a real engine process, on a checkpoint with a tokenizer."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

import forge.data.chat
from forge.config.schema import ServeTable
from forge.data.chat import ChatTemplate
from forge.process.ask import open_client
from forge.process.sockets import open_socket_dir
from forge.records import Message
from forge.serve.replicas import open_replicas
from forge.serve.weights import Weights

if TYPE_CHECKING:
    from conftest import Reference

END = "<|im_end|>"
SPECIAL = ["<|endoftext|>", "<|im_start|>", END]
BODY = {"messages": [{"role": "user", "content": "née"}], "max_tokens": 40, "seed": 1}


@pytest.fixture
def talking(tied: Reference, tmp_path: Path) -> Path:
    """The checkpoint with a byte-level tokenizer and the project's chat template."""
    path = tmp_path / "talking"
    shutil.copytree(tied.path, path)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(["user assistant system"], trainer)
    tokenizer.save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(json.dumps({"eos_token": END}))
    template = Path(forge.data.chat.__file__).with_name("chat_template.jinja")
    shutil.copy(template, path / "chat_template.jinja")
    return path


@pytest.mark.anyio
async def test_chat_renders_like_training_and_streams_the_same_text(
    talking: Path, tmp_path: Path
) -> None:
    table = ServeTable(slots=2, context_tokens=256)
    with open_socket_dir() as sockets, anyio.fail_after(60):
        async with (
            open_replicas(
                table,
                weights=Weights(full=talking),
                stop_token_ids=(),
                socket_dir=sockets,
                log_dir=tmp_path,
                work_dir=tmp_path,
            ),
            open_client(sockets / "serve-0.sock", timeout_s=20) as http,
        ):
            whole = (await http.post("/v1/chat/completions", json=BODY)).json()
            stream = await http.post("/v1/chat/completions", json={**BODY, "stream": True})
    template = ChatTemplate.load(talking)
    rendered = template.render([Message(role="user", content="née")], add_generation_prompt=True)
    (choice,) = whole["choices"]
    assert whole["usage"]["prompt_tokens"] == len(rendered)
    assert choice["message"]["content"] == template.decode(choice["token_ids"])
    events: list[Any] = [
        json.loads(line.removeprefix("data: "))
        for line in stream.text.splitlines()
        if line.startswith("data: {")
    ]
    deltas = [event["choices"][0]["delta"]["content"] for event in events if "choices" in event]
    assert "".join(deltas) == choice["message"]["content"]
    assert stream.text.endswith("data: [DONE]\n\n")
