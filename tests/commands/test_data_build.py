"""`forge data build` and `forge data show`: whole builds, bad input, kills."""

import errno
import json
import os
import re
import tomllib
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from forge.cli import run_command
from forge.commands import data_build
from forge.config.load import load_build
from forge.config.schema import Experiment
from forge.config.schema.build import DataBuild
from forge.data.build import output
from forge.data.pairs.conversations import read_pairs
from forge.errors import ConfigError, MachineError
from forge.records import Pair, Problem, Split, Status, Verdict
from forge.runner.prepare.prepare import without_heldout
from tests.data.build.samples import (
    MODULE,
    build_of,
    example,
    likeness,
    make_rows,
    trinity_row,
    write_jsonl,
    write_tokenizer,
)
from tests.examples import examples
from tests.prompting import PROMPTS
from tests.views.terminals import told


def build(folder: Path, rows: Sequence[Any], **tables: dict[str, Any]) -> Mapping[str, Any]:
    """The manifest of a build of these rows, in one process."""
    folder.mkdir(exist_ok=True)
    write_jsonl(folder / "rows.jsonl", list(rows))
    return data_build.build_rows(build_of(folder, **tables))


def interrupted(
    monkeypatch: pytest.MonkeyPatch, step: str, folder: Path, rows: Sequence[Any],
    **tables: dict[str, Any],
) -> None:  # fmt: skip
    """A build that Ctrl-C ends at a step."""

    def interrupt(*_: Any, **__: Any) -> NoReturn:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(output if hasattr(output, step) else data_build, step, interrupt)
        with pytest.raises(KeyboardInterrupt):
            build(folder, rows, **tables)


def written(folder: Path, name: str = "train.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "out" / name).read_text().splitlines()]


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}


def test_a_build_writes_rows_that_a_run_reads(tmp_path):
    rows = make_rows(12)
    manifest = build(tmp_path, [*rows, rows[0]], split={"heldout_share": 0.25})
    counts = manifest["rows"]
    assert counts["train"] + counts["heldout"] == 12
    assert counts["heldout"] == 3
    for name in ("train.parquet", "train.jsonl"):
        pairs = read_pairs(tmp_path / "out" / name, prompts=PROMPTS)
        assert len(pairs) == counts["train"]
        assert "```python" in pairs[0].messages[-1].content
    origins = {
        row["origin"] for n in ("train.jsonl", "heldout.jsonl") for row in written(tmp_path, n)
    }
    assert origins == {f"rows.jsonl:{number}" for number in range(1, 13)}


def test_a_run_refuses_no_row_that_a_build_has_kept(tmp_path):
    held = MODULE.format(name="Model", op="sin", number=2)
    (tmp_path / "held.py").write_text(held)
    unused = "".join(
        f"\ndef unused_{n}(x):\n    return torch.other_{n}(x) * {n}\n" for n in range(9)
    )
    planted = trinity_row("sin", number=2, name="Other")
    planted["pytorch_code"] += unused
    rows = [trinity_row("exp"), planted]
    assert likeness(held, planted["pytorch_code"]) < 0.8, "only its normal form tells"

    manifest = build(tmp_path, rows, heldout={"paths": [str(tmp_path / "held.py")]})
    assert manifest["rows"]["train"] == 1
    dropped = json.loads((tmp_path / "out" / "dropped.jsonl").read_text())
    assert dropped["detail"] == "held.py (the same)"
    problem = Problem(problem_id="held", source=held, family="", level=1, split=Split.HELDOUT)
    experiment = Experiment.model_validate(
        {
            "name": "x", "model": {"init": "tiny"}, "problems": {}, "data": {"source": "file",
            "path": tmp_path / "out" / "train.jsonl"},
            "stage": [{"kind": "sft", "steps": 1, "learning_rate": 1e-3}, {"kind": "eval"}],
        }
    )  # fmt: skip
    pairs = read_pairs(tmp_path / "out" / "train.jsonl", prompts=PROMPTS)
    assert without_heldout(pairs, [problem], experiment, place="rows") == pairs

    raw = Pair(problem_id="2", messages=example(planted, "trinity").messages, num_turns=1)
    with pytest.raises(ConfigError, match="is held out"):
        without_heldout([raw], [problem], experiment, place="rows")


def test_the_manifest_counts_rows_in_and_out_of_each_step(tmp_path):
    (tmp_path / "held.py").write_text(MODULE.format(name="Model", op="sin", number=2))
    rows = [
        *make_rows(4), "{broken", {"text": "x"}, "[1]", trinity_row(triton_code="x = 1"),
        trinity_row("sin"), make_rows(1)[0], trinity_row("exp", name="A"),
        trinity_row("exp", name="B"), "\xff",
    ]  # fmt: skip
    manifest = build(tmp_path, rows, heldout={"paths": [str(tmp_path / "held.py")]})
    steps = {step["step"]: step for step in manifest["steps"]}
    assert steps["read"]["reasons"] == {"broken JSON": 2, "broken row": 1, "no object": 1}
    assert steps["convert"]["reasons"] == {"without ModelNew or triton_kernel_wrapper": 1}
    assert steps["exact duplicates"]["reasons"] == {"the same again": 1}
    assert steps["contamination"]["reasons"] == {"similar to a held-out problem": 1}
    assert steps["near-duplicates"]["reasons"] == {"similar to an earlier row": 1}
    assert steps["judged"]["off"] == "filters.judged = false"
    examples = {(each["row"], each["reason"]) for each in steps["read"]["examples"]}
    assert examples == {
        ("rows.jsonl:5", "broken JSON"), ("rows.jsonl:6", "broken row"),
        ("rows.jsonl:7", "no object"), ("rows.jsonl:13", "broken JSON"),
    }  # fmt: skip
    dropped = written(tmp_path, "dropped.jsonl")
    assert len(dropped) + sum(manifest["rows"].values()) == len(rows)
    assert {"origin", "step", "reason", "detail"} == set(dropped[0])


ROW = st.one_of(
    st.sampled_from([trinity_row(op, number=n) for op in ("relu", "exp") for n in (1, 2)]),
    st.sampled_from(["{", "[]", "7", '"x"']),
    st.dictionaries(st.sampled_from(["result", "pytorch_code", "triton_code"]), st.text()),
)


@given(rows=st.lists(ROW, max_size=12))
@settings(
    max_examples=examples(30),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_counted_reasons_sum_to_rows_in_minus_rows_out(rows, tmp_path_factory):
    folder = tmp_path_factory.mktemp("build")
    # A good first row, so that some row is left.
    manifest = build(folder, [trinity_row("sqrt"), *rows])
    rows_in = len(rows) + 1
    for step in manifest["steps"]:
        assert step["in"] == rows_in
        rows_in = step["out"]
        assert step["in"] - step["out"] == sum(step["reasons"].values())
    assert rows_in == sum(manifest["rows"].values()) == len(written(folder))


def test_a_build_that_is_done_is_not_repeated_and_another_one_is_refused(tmp_path):
    build(tmp_path, make_rows(3))
    before = (tmp_path / "out/train.jsonl").stat().st_mtime_ns
    build(tmp_path, make_rows(3))
    assert (tmp_path / "out/train.jsonl").stat().st_mtime_ns == before
    with pytest.raises(ConfigError, match=r"output.dir: .*holds a build of other settings"):
        build(tmp_path, make_rows(4))
    (tmp_path / "out/train.jsonl").unlink()
    build(tmp_path, make_rows(3))
    assert len(written(tmp_path)) == 3


def test_rows_or_a_directory_that_cannot_be_used_are_an_error_with_the_reasons(tmp_path):
    with pytest.raises(ConfigError, match="no row is left; 2 broken JSON, 1 no object"):
        build(tmp_path / "a", ["{", "[1]", "{"])
    (tmp_path / "b/out").mkdir(parents=True)
    (tmp_path / "b/out/train.jsonl").write_text("mine")
    with pytest.raises(ConfigError, match="is not empty, and no build made"):
        build(tmp_path / "b", make_rows(3))
    assert (tmp_path / "b/out/train.jsonl").read_text() == "mine"


MIXED = [
    {"messages": [{"role": "user", "content": "ask"}, {"role": "assistant", "content": "code"}]},
    {"conversations": [{"from": "human", "value": "ask"}, {"from": "gpt", "value": "code"}]},
    {"text": "x"}, {"text": "y"}, {"messages": [{"role": "tool", "content": "3"}]},
]  # fmt: skip


def test_rows_of_several_formats_are_read_or_named_with_the_reason(tmp_path, capsys):
    write_jsonl(tmp_path / "rows.jsonl", MIXED)
    settings = settings_file(tmp_path)
    settings.write_text(settings.read_text().replace("trinity", "messages"))
    shown = told(capsys, "data", "build", settings, "--set", "filters.quality=false")
    assert "rows.jsonl:3: broken row: found columns text; a row has messages" in shown
    assert "rows.jsonl:5: broken row: role: found tool; " in shown
    assert "2 rows" in shown
    assert [row["origin"] for row in written(tmp_path)] == ["rows.jsonl:1"], "the same again"
    unread = json.loads(told(capsys, "data", "show", tmp_path / "rows.jsonl", "--json"))["unread"]
    assert sorted(unread.values()) == [1, 2]


def test_strict_ends_with_the_first_broken_row(tmp_path, capsys):
    write_jsonl(tmp_path / "rows.jsonl", [*make_rows(2), {"text": "x"}, "{"])
    assert run_command(["data", "build", str(settings_file(tmp_path)), "--strict"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f'input.path: {tmp_path}/rows.jsonl:3 ("trinity"): broken row: ' in line
    assert "triton_code: found nothing; a text (columns here: text)" in line


class FakePool:
    """Judges by a word in the code. Counts its requests."""

    fails = ""
    """A word of the code whose judge fails."""

    def __init__(self) -> None:
        self.num_asked = 0

    async def judge(self, problem: Any, code: str, **options: Any) -> Verdict:
        self.num_asked += 1
        if self.fails and self.fails in code:
            return Verdict(status=Status.INFRA_ERROR, reason="gpu_busy", detail="", harness="h")
        status = Status.WRONG if "tl.exp" in code else Status.CORRECT
        reason = "mismatch" if status is Status.WRONG else "ok"
        return Verdict(status=status, reason=reason, detail="", harness="h")


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> FakePool:
    fake = FakePool()

    @asynccontextmanager
    async def open_fake(*_: Any, **__: Any) -> AsyncGenerator[FakePool]:
        yield fake

    monkeypatch.setattr(data_build, "open_private_pool", open_fake)
    return fake


def test_only_answers_that_are_judged_correct_stay(tmp_path, pool):
    rows = [trinity_row(op) for op in ("relu", "exp", "sin")]
    manifest = build(tmp_path, rows, filters={"judged": True})
    assert manifest["verdicts"] == {"correct: ok": 2, "wrong: mismatch": 1}
    assert manifest["judges"]["harness"] == ["h"]
    assert [row["verdict"] for row in written(tmp_path)] == ["correct", "correct"]
    (dropped,) = written(tmp_path, "dropped.jsonl")
    assert (dropped["step"], dropped["reason"]) == ("judged", "wrong: mismatch")


def test_a_build_that_ended_while_judging_judges_no_answer_twice(tmp_path, pool, monkeypatch):
    rows = [trinity_row(op) for op in ("relu", "exp", "sin")]
    interrupted(monkeypatch, "open_sinks", tmp_path, rows, filters={"judged": True})
    log = tmp_path / "out/.build/verdicts.jsonl"
    log.write_text(log.read_text()[:-20])  # the last line was cut
    assert pool.num_asked == 3
    build(tmp_path, rows, filters={"judged": True})
    assert pool.num_asked == 4


def test_a_row_that_a_failed_judge_has_no_verdict_of_is_judged_again(tmp_path, pool):
    rows = [trinity_row(op) for op in ("relu", "exp", "sin")]
    pool.fails = "tl.sin"
    with pytest.raises(MachineError, match=r"1 of 3 rows .*gpu_busy"):
        build(tmp_path, rows, filters={"judged": True})
    pool.fails = ""
    assert build(tmp_path, rows, filters={"judged": True})["verdicts"]["correct: ok"] == 2
    assert pool.num_asked == 4


@pytest.mark.parametrize("damage", ["\0" * 20 + "\n", "[]\n", '{"a": 1}\n', '{"key": "'])
def test_a_log_is_read_to_its_first_damaged_line(tmp_path, damage):
    log = output.ResultLog(tmp_path / "log")
    log.add("a", {"n": 1})
    log.close()
    with (tmp_path / "log").open("a") as file:
        file.write(damage)
    log = output.ResultLog(tmp_path / "log")
    log.add("b", {"n": 2})
    log.close()
    log = output.ResultLog(tmp_path / "log")
    assert (log.get("a"), log.get("b")) == ({"n": 1}, {"n": 2})
    log.close()


def settings_file(folder: Path, text: str = "") -> Path:
    path = folder / "build.toml"
    path.write_text(
        '[input]\npath = "rows.jsonl"\nformat = "trinity"\n[filters]\nlength = false\n'
        f'[output]\ndir = "out"\n{text}'
    )
    return path


def test_a_build_that_was_interrupted_writes_the_same_bytes(tmp_path, monkeypatch):
    rows, split = make_rows(150), {"heldout_share": 0.1}
    build(tmp_path / "whole", rows, split=split)
    folder = tmp_path / "killed"
    for step in ("find_row_files", "describe_steps", "open_sinks", "output_row"):
        interrupted(monkeypatch, step, folder, rows, split=split)
    (folder / "out/.train.jsonl.partial").write_text("half")
    build(folder, rows, split=split)
    assert contents(tmp_path / "whole/out") == contents(folder / "out")
    assert set(contents(folder / "out")) == {
        "dropped.jsonl", "manifest.json", "heldout.jsonl", "heldout.parquet", "train.jsonl",
        "train.parquet",
    }  # fmt: skip


def test_files_of_an_unfinished_build_with_other_settings_are_removed(tmp_path, monkeypatch):
    split = {"heldout_share": 0.5}
    interrupted(monkeypatch, "hash_file", tmp_path, make_rows(4), split=split)
    assert (tmp_path / "out/heldout.jsonl").is_file()
    build(tmp_path, make_rows(4))
    assert set(contents(tmp_path / "out")) == {
        "dropped.jsonl", "manifest.json", "train.jsonl", "train.parquet",
    }  # fmt: skip


def errors(folder: Path, text: str) -> list[str]:
    path = folder / "build.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_build(path)
    return str(caught.value).replace(f"{folder}/", "").splitlines()


def test_all_mistakes_of_the_settings_are_reported_at_once(tmp_path):
    text = (
        '[input]\npath = "nowhere"\nformt = "x"\n[filters]\nmin_tokens = 9000\n[output]\ndir = 3\n'
    )
    assert errors(tmp_path, text) == [
        "build.toml:3: input.formt: unknown key; did you mean format?",
        "build.toml:7: output.dir: found 3; a path",
    ]
    text = text.replace("formt", "format").replace('"x"', '"traces"').replace("= 3", '= "out"')
    assert errors(tmp_path, text) == [
        "build.toml: tokenizer.path: missing; a model's directory, or filters.length = false",
        (
            'build.toml:2: input.path: found "nowhere", which does not exist; '
            "a file of rows, a directory or a hub name"
        ),
        "build.toml:5: filters.min_tokens: found 9000; at most filters.max_tokens",
    ]


def test_a_tokenizer_without_a_chat_template_is_one_line(tmp_path):
    model = write_tokenizer(tmp_path / "model")
    (model / "chat_template.jinja").unlink()
    tables = {"tokenizer": {"path": str(model)}, "filters": {"length": True}}
    with pytest.raises(ConfigError) as caught:
        build(tmp_path, make_rows(1), **tables)
    advice = 'no chat template; [tokenizer] chat_template = "chatml" or a file'
    assert str(caught.value) == f"tokenizer.path: {model}: {advice}"
    chatml = {**tables, "tokenizer": {"path": str(model), "chat_template": "chatml"}}
    assert build(tmp_path, make_rows(1), **chatml)
    (model / "tokenizer.json").write_text("{")
    with pytest.raises(ConfigError, match=r"^tokenizer.path: .*no tokenizer: [^\n]*$"):
        build(tmp_path, make_rows(1), **tables)


def test_an_input_that_breaks_off_is_one_line(tmp_path, capsys):
    path = tmp_path / "rows.parquet"
    rows = [trinity_row(number=n) for n in range(300)]
    parquet.write_table(pa.Table.from_pylist(rows), path, row_group_size=50, compression="none")
    data = bytearray(path.read_bytes())
    data[200:20_000] = b"\xff" * 19_800
    path.write_bytes(data)
    file = settings_file(tmp_path)
    argv = ["data", "build", str(file), "--set", f"input.path={path}"]
    (line,) = told(capsys, *argv, code=2).splitlines()
    assert f"input.path: {path}: cannot be read: " in line


def test_two_builds_in_one_directory_are_refused(tmp_path):
    import fcntl

    (tmp_path / "out/.build").mkdir(parents=True)
    lock = os.open(tmp_path / "out", os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    with pytest.raises(ConfigError, match="another build is writing to it"):
        build(tmp_path, make_rows(1))
    os.close(lock)


def test_a_disk_that_is_full_before_the_first_row_is_named_with_the_directory(
    tmp_path, monkeypatch
):
    def full(path: Path, data: bytes) -> NoReturn:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("forge.data.build.output.write_whole", full)
    with pytest.raises(MachineError, match="out: cannot be written: No space left"):
        build(tmp_path, make_rows(1))


def test_the_command_prints_steps_and_show_repeats_them(tmp_path, capsys):
    model = write_tokenizer(tmp_path / "model")
    write_jsonl(tmp_path / "rows.jsonl", [*make_rows(3), "{"])
    shown = told(capsys, "data", "build", settings_file(tmp_path))
    assert "1 broken JSON" in shown
    assert "3 train rows in" in shown
    file = str(tmp_path / "out/train.parquet")
    shown = told(capsys, "data", "show", file, "--limit", "2", "--tokenizer", model)
    assert shown.count("[assistant]") == 2
    assert "3 rows: 3 with 1 answers" in shown
    assert "tokens or more" in shown
    assert "1 broken JSON" in shown


def test_show_escapes_what_a_row_says_and_counts_broken_rows(tmp_path, capsys):
    write_jsonl(tmp_path / "rows.jsonl", [{"text": "\x1b[31mred"}, "{"])
    shown = told(capsys, "data", "show", tmp_path / "rows.jsonl")
    assert "\x1b[31m" not in shown
    assert "2 rows" in shown
    assert "1 broken JSON: " in shown
    assert run_command(["data", "show", str(tmp_path / "none.jsonl")]) == 2


def test_the_documents_list_every_key_of_a_build_with_its_default():
    text = (Path(__file__).parents[2] / "docs/how-to/sft-rows.md").read_text()
    found = re.search(r"^```toml\n(\[input\].*?)^```", text, re.MULTILINE | re.DOTALL)
    values = tomllib.loads(found[1])
    DataBuild.model_validate(values)
    for name, table in DataBuild.model_fields.items():
        if name in ("judge", "prompt"):
            continue
        inner: Any = table.annotation
        fields = inner.model_fields
        assert set(values[name]) == set(fields)
        for key, value in values[name].items():
            line = next(line for line in found[1].splitlines() if line.startswith(f"{key} ="))
            if "# *" not in line:
                assert fields[key].get_default(call_default_factory=True) == value
                assert fields[key].description
