"""Every TOML and Python block of the documents is valid, and names only what forge has; formulas
are drawn, and the table of models says what is tested.
"""

import ast
import importlib
import re
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

from docs.generate.hook import on_page_markdown
from forge.config.keys import all_keys
from forge.config.load import load_experiment
from forge.config.schema.build import DataBuild
from forge.errors import ConfigError
from forge.serve.architectures import no_llama
from tests.architectures import ARCHITECTURES
from tests.docs.pages import PAGES, ROOT, Block, file_name, read_blocks

TOML = [block for block in read_blocks("toml") if file_name(block) is None]
PYTHON = read_blocks("python")
BASES = tuple(
    f'extends = "{ROOT}/experiments/{name}.toml"' for name in ("quickstart", "qwen3-8b-kernelbench")
)
BARE = '[model]\npath = "m"\n[[stage]]\nkind = "grpo"\nsteps = 1\nlearning_rate = 1e-6\n'
"""Experiments that a part may belong to: on CPUs, on GPUs with problem files, a bare one."""
NEXT_TO_IT = {"my_rewards.py": "def score(verdict):\n    return {}\n"}
"""Files that blocks name."""


def by_place(block: Block) -> str:
    return block.place


@pytest.mark.parametrize("block", TOML, ids=by_place)
def test_a_toml_block_loads(block, tmp_path):
    """A block with `[input]` is a build of rows, one that begins with a name an experiment; any
    other one is part of an experiment."""
    for name, text in NEXT_TO_IT.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    if "input" in tomllib.loads(block.text):
        DataBuild.model_validate(tomllib.loads(block.text))
    elif block.text.startswith("name ="):
        load_text(block.text, tmp_path)
    else:
        load_part(block.text, tmp_path)


def load_text(text: str, folder: Path) -> None:
    path = folder / "x.toml"
    path.write_text(text, encoding="utf-8")
    load_experiment(path, is_here=False)


def load_part(text: str, folder: Path) -> None:
    """Loads a part of an experiment as a change of a whole one, whichever it fits."""
    errors: list[str] = []
    for whole in (*(f"{base}\n{text}" for base in BASES), f'name = "bare"\n{text}\n{BARE}'):
        try:
            load_text(whole, folder)
        except ConfigError as error:
            errors.append(str(error))
        else:
            return
    pytest.fail("\n".join(errors))


@pytest.mark.parametrize("block", PYTHON, ids=by_place)
def test_a_python_block_parses_and_names_what_exists(block):
    tree = ast.parse(block.text)
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module=str() as module, names=names) if is_ours(module):
                loaded = importlib.import_module(module)
                absent = [name.name for name in names if not hasattr(loaded, name.name)]
            case ast.Attribute(value=ast.Name(id="forge"), attr=attr):
                absent = [] if hasattr(importlib.import_module("forge"), attr) else [attr]
            case _:
                continue
        assert absent == [], f"{block.place}: forge has no {absent}"


def is_ours(module: str) -> bool:
    return module.partition(".")[0] == "forge"


def named_keys() -> dict[str, str]:
    """Keys that documents name in inline code, such as `rollout.max_turns`, with a page of each."""
    tables = {key.table.split(".")[0].split(" ")[0] for key in all_keys()} - {"", "stage"}
    pattern = re.compile(rf"`((?:{'|'.join(sorted(tables))})(?:\.[a-z_]+)+)(?:`| =)")
    return {
        named: page.name
        for page in PAGES
        for named in pattern.findall(page.read_text(encoding="utf-8"))
        if not named.endswith((".py", ".toml", ".md", ".jsonl", ".json", ".parquet", ".log"))
    }


def test_every_key_that_a_document_names_exists():
    known = {key.path for key in all_keys()} | {key.table for key in all_keys()}
    assert len(named_keys()) >= 30
    assert {key: page for key, page in named_keys().items() if key not in known} == {}


PAGE = "Before\n\n```math\na_b\n```\n\n$`\\gamma`$ is 0.4; ours has\n$`H`$ terms.\n"


@pytest.fixture
def mathml(monkeypatch: pytest.MonkeyPatch) -> None:
    """`make docs` alone installs the converter: here its output is the source in an element."""

    def convert(latex: str, display: str = "inline") -> str:
        return f'<math display="{display}">{latex.strip()}</math>'

    monkeypatch.setitem(sys.modules, "latex2mathml.converter", SimpleNamespace(convert=convert))


@pytest.mark.usefixtures("mathml")
def test_no_line_begins_with_a_formula_which_markdown_would_take_for_a_paragraph():
    lines = on_page_markdown(PAGE).splitlines()
    assert not [line for line in lines if line.startswith("<math")]
    assert [line for line in lines if '<span><math display="inline">' in line] == lines[-2:]


@pytest.mark.usefixtures("mathml")
def test_a_formula_of_its_own_is_in_an_element_that_scrolls():
    assert '<div class="formula"><math display="block">a_b</math></div>' in on_page_markdown(PAGE)


MODELS_PAGE = ROOT / "docs" / "how-to" / "models.md"
IN_LLAMA: dict[str, str] = dict.fromkeys(("mistral", "mixtral", "phi3"), "up to its window")
IN_LLAMA["gpt_oss"] = "not with `truncate` off"
TRIED_IN_VLLM = frozenset({"llama", "qwen3"})
"""Served by vLLM in `tests/serve/test_vllm_gpu.py` or in `bench/RESULTS.md`."""


def row_of(name: str) -> str:
    """The line of an architecture."""
    chosen = ARCHITECTURES[name]
    cells = (
        f"`{name}`", chosen.models, "yes", "yes" if chosen.packs else "no", "yes",
        IN_LLAMA.get(name, "no" if no_llama(name) else "yes"),
        "yes" if name in TRIED_IN_VLLM else "not tried",
    )  # fmt: skip
    return f"| {' | '.join(cells)} |"


def test_the_table_of_models_says_what_is_tested():
    rows = [line for line in MODELS_PAGE.read_text().splitlines() if line.startswith("| `")]
    assert rows[1:] == [row_of(name) for name in ARCHITECTURES]
