"""The generated reference is complete: every key, command, view, reason, route and public name."""

import inspect
import re
from dataclasses import is_dataclass
from functools import cache
from pathlib import Path

import pytest
from typer.main import get_command

import forge
from docs.generate.__main__ import write_pages
from docs.generate.advice import ADVICE
from docs.generate.commands import iter_commands, meaning, metavar
from docs.generate.hook import on_page_markdown
from docs.generate.http import OPENENV_BODIES
from docs.generate.markdown import anchored, code, table, text
from docs.generate.metrics import METRICS
from docs.generate.pages import PAGES
from docs.generate.python import iter_documented, public_fields
from docs.generate.store import BY_NAME, meanings, relations, token_relations
from docs.generate.verdicts import meaning_of
from forge.adapters.http.routes import document
from forge.cli import app
from forge.config.keys import all_keys, build_keys
from forge.records.examination import Flag
from forge.records.reason import Reason, Status, policy_of
from forge.records.rollout import End

ROOT = Path(__file__).resolve().parents[1]


@cache
def page(name: str) -> str:
    return PAGES[f"reference/{name}.md"]()


def sections(name: str) -> dict[str, str]:
    """Text below each heading of a page, by its words."""
    parts = re.split(r"^##+ (.*)\n", page(name), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_every_key_is_there_with_type_default_and_description():
    named = {key.path.replace(" ", "."): key for key in all_keys()}
    named |= {f"build.{key.path}": key for key in build_keys()}
    assert len(named) > 240
    for anchor, key in named.items():
        assert all((key.type, key.default, key.doc)), anchor
        (row,) = re.findall(rf'^\| <code id="{anchor}">{key.name}</code> .*$', page("keys"), re.M)
        assert len(re.split(r"(?<!\\) \| ", row)) == 5, anchor


def test_a_key_with_a_unit_in_its_name_has_it_in_the_reference():
    named = re.compile(r".*(_s|_us|_bytes|_tokens)$")
    numbers = [key for key in all_keys() if named.match(key.name) and "number" in key.type]
    assert len(numbers) > 8
    assert [key.path for key in numbers if not key.unit] == []


def test_every_number_has_a_range_or_is_free_by_intention():
    free = {key.path for key in all_keys() if key.type in ("an integer", "a number")}
    assert free == {"reward.compiled", "reward.correct", "reward.speedup"}


def test_every_command_and_option_is_there_with_its_meaning():
    shown = sections("commands")
    commands = dict(iter_commands(get_command(app), "forge"))
    assert {"forge run", "forge problems check", "forge kernels export"} <= commands.keys()
    for name, command in commands.items():
        assert command.help, name
        for parameter in command.params:
            first = parameter.opts[0]
            written = first if first.startswith("-") else metavar(parameter)
            assert meaning(parameter), f"{name} {written}"
            assert code(written) in shown[name], f"{name} {written}"


def test_every_view_and_table_is_there_and_every_column_has_a_meaning():
    found = [*relations(), *token_relations()]
    assert {"v_turns", "v_steps", "turns", "tokens"} <= {each.name for each in found}
    shown = sections("store")
    absent = [
        f"{each.name}.{column}: add it to docs/generate/columns.toml"
        for each in found
        for column, words in each.columns.items()
        if not words or f"| `{column}` |" not in shown[each.name]
    ]
    assert absent == []
    assert [each.name for each in found if not each.comment] == []


def test_every_meaning_belongs_to_a_column():
    columns = {each.name: each.columns for each in [*relations(), *token_relations()]}
    own = {(name, word) for name, words in meanings().items() for word in words}
    unused = {
        (name, word) for name, word in own if name != BY_NAME and word not in columns.get(name, {})
    }
    shown = {words for each in columns.values() for words in each.values()}
    unused |= {(BY_NAME, word) for word, words in meanings()[BY_NAME].items() if words not in shown}
    assert unused == set()


@pytest.mark.parametrize("kind", [Status, Reason, End, Flag])
def test_every_status_reason_end_and_flag_is_there_with_its_meaning(kind):
    for member in kind:
        shown = (code(member), anchored(member, anchor=member))
        assert any(f"| {name} | " in page("verdicts") for name in shown)
        assert meaning_of(member), member


def test_every_reason_has_advice_and_statuses_that_fit_its_policy():
    assert ADVICE.keys() == set(Reason)
    for reason, advice in ADVICE.items():
        assert advice.statuses, reason
        assert advice.text, reason
        scored = {status.is_scored for status in advice.statuses}
        assert len(scored) == 1, f"{reason} is scored and not scored"
        causes = {policy_of(status, reason).cause is None for status in advice.statuses}
        assert causes == scored


def test_the_statuses_of_reasons_are_those_that_the_judge_gives():
    """In source text: `Status.WRONG, Reason.RACE` or `Status.WRONG, "race"` side by side."""
    given: set[tuple[Status, Reason]] = set()
    for path in (ROOT / "forge/evalpool").rglob("*.py"):
        source = path.read_text(encoding="utf-8")
        pairs = re.findall(r'Status\.([A-Z_]+), (?:reason=)?(Reason\.\w+|"\w+)', source)
        for status, word in pairs:
            name = word.removeprefix("Reason.").strip('"')
            reason = Reason.of(name) or Reason[name]
            given.add((Status[status], reason))
    assert len(given) > 25
    assert [pair for pair in given if pair[0] not in ADVICE[pair[1]].statuses] == []


def test_every_route_and_field_of_http_has_a_description():
    found = document()
    shown = sections("http")
    for path, calls in found["paths"].items():
        for method in calls.keys() - {"parameters"}:
            assert f"{method.upper()} {path}" in shown
    for name, schema in found["components"]["schemas"].items():
        assert schema.get("description"), name
        for field, described in schema["properties"].items():
            assert described.get("description"), f"{name}.{field}"
            assert f"| `{field}` |" in shown[name]


def test_the_metrics_are_those_that_a_run_records():
    """Names are string constants where metrics are made; idle times have the role as a part."""
    made = re.compile(r'"((?:train|rollout|weights|step)/\w+/\w+)"(?::|\] = )')
    places = ("forge/train/trainer", "forge/runner/stages", "forge/runner/live")
    sources = [path for place in places for path in (ROOT / place).rglob("*.py")]
    texts = [path.read_text(encoding="utf-8") for path in sources]
    found = {name for text in texts for name in made.findall(text)}
    assert len(found) > 25
    idle = {f"idle/{role}/seconds" for role in ("trainer", "serve", "judge")}
    assert found | idle == METRICS.keys()
    assert all(f"| `{name}` |" in page("metrics") for name in METRICS)


def test_every_body_of_an_openenv_environment_is_described():
    for model in OPENENV_BODIES:
        for field, described in model.model_json_schema()["properties"].items():
            assert described.get("description"), f"{model.__name__}.{field}"
            assert f"| `{field}` |" in sections("http")[model.__name__]
    assert "`POST /step`" in sections("http")["OpenEnv"]


def test_every_public_name_of_python_has_a_docstring():
    names = dict(iter_documented())
    shown = page("python")
    assert {f"forge.{name}" for name in forge.__all__ if name != "client"} <= names.keys()
    for name, each in names.items():
        assert inspect.getdoc(each), name
        assert name.rpartition(".")[2] in shown
    values = [each for each in names.values() if is_dataclass(each) and isinstance(each, type)]
    assert len(values) > 4
    bare = [
        f"{kind.__name__}.{field}"
        for kind in values
        for field, _, doc in public_fields(kind)
        if not doc
    ]
    assert bare == []


def test_a_signature_shows_defaults_as_they_are_written():
    assert "preset: str = 'standard'" in page("python")
    assert "forge.client.Judge(" in page("python")
    assert ") -> None" not in sections("python")["forge.client.Judge"].split("Judge.close")[0]


def test_every_exit_code_is_there():
    codes = re.findall(r"^\| `(\d+)` \|", page("exit-codes"), re.MULTILINE)
    assert codes == ["0", "2", "3", "4", "5", "70", "130"]


def test_no_table_has_an_empty_description():
    for name in PAGES:
        for line in page(name[10:-3]).splitlines():
            cells = re.split(r"(?<!\\)\|", line)[1:-1]
            if line.startswith("|") and "meaning" not in line.lower() and name[10:] in (
                "keys.md", "commands.md", "store.md", "http.md", "verdicts.md",
            ):  # fmt: skip
                is_consequence = name.endswith("verdicts.md") and cells[-1].strip() in ("yes", "no")
                assert cells[-1].strip() or is_consequence, f"{name}: {line}"


def test_pages_are_written_where_the_site_links_to(tmp_path):
    """In the sources, which are also read before `make docs`, links go to the rows of the index."""
    write_pages(tmp_path)
    index = on_page_markdown((ROOT / "docs/reference/index.md").read_text(encoding="utf-8"))
    assert on_page_markdown("[x](../reference/index.md#keys)") == "[x](../reference/keys.md)"
    linked = set(re.findall(r"\]\((\S+\.md)\)", index))
    assert linked == {path.name for path in (tmp_path / "reference").iterdir()}
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert [name for name in PAGES if f"- {name}" not in nav] == []


def test_text_is_shown_as_written():
    assert text("a | b *c* `d|e` <f> [g]") == r"a \| b \*c\* <code>d&#124;e</code> &lt;f> \[g]"
    assert text("two\n  lines") == "two lines"
    assert table(("A", "B"), [("1", "2")]) == "| A | B |\n| --- | --- |\n| 1 | 2 |\n"
