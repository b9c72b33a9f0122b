"""Extraction of source from completions."""

import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge.data.answers import extract

CODE = "import torch\nclass ModelNew:\n    pass\n"


def test_takes_the_last_block_that_defines_the_entry_point() -> None:
    text = f"```python\n# old\n{CODE}```\nbetter:\n```python\n# new\n{CODE}```\n```\nprint(1)\n```"
    assert extract(text).code == "# new\n" + CODE


HEAD = "import torch\n@triton.jit\ndef kernel(x):\n    pass\n"
STRINGS = [
    '"""Sum.\n\n```python\nModelNew()(a, b)\n```\n"""\n',
    '"""```python\nclass ModelNew: ...\n```"""\n',
    '"""\n```\nx\n```\n\n~~~py\ny\n~~~\nas: ```\nz\n```\n"""\n',
    "A = '''\n```python\n'''\nB = '```'  # ```python\nC = 1  # so: ```\n",
    "OPEN, CLOSE = '<think>', '</think>'  # </think>\n",
    "TAGS = '<triton>', '''</triton>''', \"<triton>\"\n",
]
DEFINITIONS = [
    "class ModelNew(nn.Module):\n    pass\n",
    "class Sum(nn.Module):\n    '''So.'''\n\nModelNew = Sum\n",
    "class Sum: ...\nModelNew: type = Sum\n",
    "def ModelNew(x):\n    return x\n",
    "make = lambda n: n\nModelNew = make(lambda x: [i for i in x])\n",
    "if True:\n    class ModelNew: ...\n",
    "from torch.nn import ReLU as ModelNew\n",
]
THINKING = [
    "", "<think>\nhm</think>", "<think>\nhm</think>\n",
    "no <think> needed: ```python\nx\n```\n</think></think>\n",
    "<think>\n```python\nA = '</think>'\nclass ModelNew: draft\n```\n</think>\n",
]  # fmt: skip
BEFORE = [
    "", "The module:\n\n", 'Use `x`, don\'t, ```y``` and """z.\n', "```text\n'''\n```\n",
    "```python\nclass ModelNew: old\n```\nBetter:\n", "~~~\nclass ModelNew: old\n~~~\n",
]  # fmt: skip
CUT = [
    "<think>\n```python\nclass ModelNew: draft\n</think>\n", "```sh\npip install triton\n\n",
    "```python\nclass Other: cut\n\n", '```python\nclass Cut:\n    """Never\n\n',
]  # fmt: skip
AFTER = [
    "", "\nOne kernel a call.\n", "\n```python\nmodel = ModelNew()\n```\n",
    "\n```python\nfrom answer import ModelNew\nprint(ModelNew())\n```",
    "\n```\nModelNew = Fast\n```",
]  # fmt: skip
WRAPPINGS = [
    "```python\n{}```", "```\n{}\n```", "```triton\n{}```  ", "```py title=x\n{}```\n",
    "Here: ```python\n{}```", "1. `run` it: ```\n{}```", "````python\n{}````",
    "```Python\n{}``` So.\n", "<answer>```python\n{}```</answer>",
    "````markdown\n```python\n{}```\n````", "<triton>\n{}</triton>", "<triton>\n{}\n</triton> ",
    "<triton>\n```python\n{}```\n</triton>",
]  # fmt: skip


any_of = st.sampled_from


def as_block(code: str, wrapping: str, margin: str) -> str:
    return textwrap.indent(wrapping.replace("{}", code), margin, lambda line: True)


@given(
    strings=st.tuples(*[any_of(["", *STRINGS])] * 3),
    definition=any_of(DEFINITIONS),
    around=st.tuples(any_of(THINKING), any_of(BEFORE), any_of(AFTER)),
    wrapping=any_of(WRAPPINGS),
    margin=any_of(["", "  ", "\t"]),
    end=any_of(["\n", "\r\n"]),
)
def test_a_module_comes_out_of_an_answer_as_it_went_in(
    strings: tuple[str, str, str],
    definition: str,
    around: tuple[str, str, str],
    wrapping: str,
    margin: str,
    end: str,
) -> None:
    code = f"{HEAD}{strings[0]}{strings[1]}{definition}{strings[2]}"
    text = f"{around[0]}{around[1]}{as_block(code, wrapping, margin)}{around[2]}"
    assert extract(text.replace("\n", end)).code.strip("\n") == code.strip("\n"), text


@given(any_of(CUT), any_of(BEFORE), any_of(DEFINITIONS), any_of(WRAPPINGS), any_of(AFTER))
def test_a_block_without_an_end_hides_no_later_one(
    cut: str, before: str, definition: str, wrapping: str, after: str
) -> None:
    text = f"{cut}{before}{as_block(HEAD + definition, wrapping, '')}{after}"
    assert extract(text).code.strip("\n") == f"{HEAD}{definition}".strip("\n"), text


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (f"<think>hm</think>\n```python\n{CODE}```", CODE),
        (f"```python\n# thought\n{CODE}```\n</think>\n```python\n{CODE}```", CODE),
        (f"<think>\n```python\n{CODE}```\n</think>\nno", "no_code_block"),
        (f"<think>\n```python\n{CODE}```", "unclosed_thinking"),
        (f"```python\n{CODE}", "no_code_block"),
        (f"<triton>\n{CODE}", "no_code_block"),
        (f'```python\n{CODE}"""\n```\nx', CODE + '"""\n'),
    ],
)
def test_thinking_and_what_is_unclosed_are_no_answer(text: str, found: str) -> None:
    answer = extract(text)
    assert (answer.code or answer.reason) == found


def test_a_function_may_be_the_entry_point() -> None:
    code = "import torch\ndef softmaxNew(x):\n    return x\n"
    assert extract(f"```python\n{CODE}```\n```\n{code}```", entry_point="softmax").code == code
    assert extract(f"```python\n{code}```", entry_point="soft").reason == "no_entry_point"


@pytest.mark.parametrize(
    "text",
    [
        "```cuda\n__global__ void f() {}\n```",
        "```\n#include <torch/extension.h>\nclass ModelNew : public Module {}\n```",
        "Kernel: ```cpp\nvoid f() {}\n```\n```python\nops = load(x)\n```",
    ],
)
def test_cuda_code_has_a_reason_of_its_own(text: str) -> None:
    assert extract(text).reason == "cuda_source"
    assert extract(f"{text}\n```python\n{CODE}```").code == CODE


MARKS = [
    "<triton>", "</triton>", "</think>", "```\n", "\n\n ", "<think>", "```python\n", "a: ```\n",
    '```x\n"""\n', '```\n""" # """\n"""\n```\n', "<triton>'''", "<triton>'</triton>\n",
    "```\nModelNew = (\n```\n", "x ~~~ `y` ```\n", '```\n"""ModelNew\n', "~~~\n```\n",
]  # fmt: skip


@pytest.mark.parametrize("part", MARKS)
def test_half_a_megabyte_of_marks_takes_linear_time(part: str) -> None:
    """With quadratic time this would exceed the test's timeout."""
    text = part * (500_000 // len(part))
    assert not extract(text).is_ok or "ModelNew" in part
    assert extract(f"{text}</think>\n\n```\n{CODE}```").code == CODE


@pytest.mark.parametrize("line", ["```" + " " * 10**6 + "`", "~" * 10**6 + "`", "`" * 10**6 + "x`"])
def test_one_line_of_a_megabyte_takes_linear_time(line: str) -> None:
    """With backtracking over spaces, 8,000 characters took 0.2 s."""
    assert extract(line).reason == "no_code_block"
    assert extract(f"{line}\n```\n{CODE}```").code == CODE


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no_code_block"),
        ("\0\x01\ufffd\udcff" * 99, "no_code_block"),
        ("```python\nclass Other: pass\n```", "no_entry_point"),
        ("```python\nclass ModelNewer: pass\n```", "no_entry_point"),
        ("```python\nx = ModelNew(x)\n```", "no_entry_point"),
        ("```python\ndef make():\n    class ModelNew: ...\n```", "no_entry_point"),
        ("```python\nModelNew == 1\n# ModelNew = 1\n```", "no_entry_point"),
    ],
)
def test_a_missing_answer_has_a_reason(text: str, reason: str) -> None:
    found = extract(text)
    assert (found.code, found.reason) == ("", reason)


HOSTILE = ["(" * 999, "-" * 10**5 + "1", "a" + ".b" * 10**5, "\0", "\ud800", "x = 1\n" * 10**5]


@pytest.mark.parametrize("more", ["    def forward(self, x\n", *HOSTILE])
def test_a_class_with_a_syntax_error_is_still_the_answer(more: str) -> None:
    code = f"class ModelNew:\n{more}\n"
    assert extract(f"```\n{code}```").code == code


PARTS = [
    "```", "```python\n", "~~~", "````", "\n```\n", "<think>", "</think>", "<triton>", "\n", "'''",
    "</triton>", "class ModelNew", "def ModelNew(", ":\n", " ", "\r\n", "\0", "\ud800", "x = 1",
]  # fmt: skip


@given(st.lists(st.sampled_from(PARTS) | st.text(max_size=5), max_size=40).map("".join))
def test_any_text_has_an_answer_or_a_reason(text: str) -> None:
    found = extract(text)
    assert found.is_ok == bool(found.code)
    assert not found.is_ok or "ModelNew" in found.code
