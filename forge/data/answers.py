"""Extraction of a candidate's source from a completion. Pure; called by the loop before the judge.

It never raises, takes linear time whatever the model writes, and gives a reason if there is nothing
to judge. Thinking, in the tag that `prompt.thinking` names, is removed first (unclosed thinking
leaves no answer). Then the last closed fenced or `<triton>` block counts that defines the entry
point at its top level, whatever binds the name: `class`, `def`, an assignment, `import … as`.

Fences and tags in a string of Python are text. A fence may follow words on its line, and a block
may be indented. A block without an end is never an answer: the completion was cut, and what is left
of a module could pass by chance.
"""

from __future__ import annotations

import ast
import builtins
import re
import warnings
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from forge.records.problem import syntax_tree
from forge.records.reason import Reason

THINKING = "think"
"""Default tag of thinking: <think>…</think>."""
PYTHON = "python"
_TRITON = re.compile("<(/?)triton>")
MAX_PARSED = 1 << 18
"""Maximum length of a text that is parsed; the judge refuses a longer source."""
MAX_INNER = 64
"""Maximum number of fences or tags in the strings of a block."""
MAX_MARKS = 2000
"""Maximum number of fences or tags that count, the last ones of a text."""
MAX_TRIED, MIN_TRIED = 1 << 19, 1 << 8
"""Sum of the lengths of what is parsed to find where a text's blocks end, and least for each."""
_FENCE = re.compile(
    r"^(?P<before>[ \t]*+(?=[`~])|(?:[^\n`]++|`[^\n`]++`)*+)"
    r"(?P<marks>`{3,}+|~{3,}+)(?P<info>[^\n`]*+)$",
    re.MULTILINE,
)
"""Possessive quantifiers: backtracking over characters that two parts match would take quadratic
time."""
_LANGUAGE = re.compile(
    r"\s*(?:(?:python3?|py|triton|cuda|cu|cpp|c\+\+)(?:[\s{:].*)?)?", re.IGNORECASE
)
"""Rest of a line whose fence follows words; most other lines speak about fences."""
_STATEMENT = re.compile(r"^([ \t]*+)[^\s#]", re.MULTILINE)
_CPP = re.compile(r"\s*(?:cuda|cu|cpp|c\+\+|c)\b", re.IGNORECASE)
_CUDA = re.compile(r"__global__|__device__|^[ \t]*#[ \t]*include\b|<<<", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Extraction:
    """The candidate in a completion, or the reason for its absence."""

    code: str
    """Source to judge; empty unless reason is OK."""
    reason: Reason
    """OK, NO_CODE_BLOCK, NO_ENTRY_POINT, CUDA_SOURCE or UNCLOSED_THINKING."""

    @property
    def is_ok(self) -> bool:
        """True if there is a candidate."""
        return self.reason is Reason.OK


class Block(NamedTuple):
    """A closed block of a text."""

    start: int
    """Position after its opening fence or tag."""
    end: int
    """Position of its closing fence or tag."""
    code: str
    info: str
    """Words of the opening fence, as `python`."""

    @property
    def is_cuda(self) -> bool:
        """True if it holds C++ or CUDA C++, by its tag or, without Python's, its words."""
        return _CPP.match(self.info) is not None or (
            not self.info.strip().lower().startswith("py") and is_cuda(self.code)
        )


def extract(
    completion_text: str, *, entry_point: str = "Model", thinking: str = THINKING
) -> Extraction:
    """The candidate in a completion: a block that defines `<entry_point>New`. With an empty tag of
    thinking, nothing is thinking."""
    text = completion_text.replace("\r\n", "\n")
    answer = without_thinking(text, tag=thinking) if thinking else text
    if answer is None:
        return Extraction(code="", reason=Reason.UNCLOSED_THINKING)
    name, blocks = f"{entry_point}New", _blocks(answer)
    found = [one for one in reversed(blocks) if defines(one.code, name)]
    best = found[0] if found else None
    if best is None or parse(best.code) is None:
        after = best.start if best else -1
        inner = (one for one in found if one.start > after and parse(one.code) is not None)
        best = next(inner, None) or _overlooked(answer, name, after=after) or best
    if best is not None and parse(best.code) is not None:
        return Extraction(code=best.code, reason=Reason.OK)
    if any(block.is_cuda for block in ([best] if best else blocks)):
        return Extraction(code="", reason=Reason.CUDA_SOURCE)
    if best is not None:  # Python with a mistake
        return Extraction(code=best.code, reason=Reason.OK)
    return Extraction(code="", reason=Reason.NO_ENTRY_POINT if blocks else Reason.NO_CODE_BLOCK)


def is_cuda(code: str) -> bool:
    """True if a text has words that CUDA C++ has and Python lacks, outside of its strings too."""
    return _CUDA.search(code) is not None


def parse(code: str) -> ast.Module | None:
    """The syntax tree; None for a text that is no Python, or too long for a source."""
    if len(code) > MAX_PARSED:
        return None
    try:
        with warnings.catch_warnings(action="ignore"):  # a wrong escape in a string
            return syntax_tree(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def defines(code: str, name: str) -> bool:
    """True if code binds a name at its top level; in code with a mistake, if a line begins to."""
    if name not in code:
        return False
    tree = parse(code)
    if tree is not None:
        return binds(tree, name)
    begins = rf"^(?:(?:class|def)[ \t]+{re.escape(name)}\b|{re.escape(name)}[ \t]*=(?!=))"
    return re.search(begins, code, re.MULTILINE) is not None


def binds(tree: ast.Module, name: str) -> bool:
    """True if a module binds a name at its top level, to what it has: `ModelNew = Sum` counts in a
    module that has `Sum`."""
    bound, values = set(dir(builtins)), list[ast.expr]()
    for node in _top_level(tree):
        match node:
            case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                bound.add(node.name)
            case ast.alias() if node.asname or node.name != name:  # only a test imports the answer
                bound.add(node.asname or node.name.split(".")[0])
            case ast.Name(ctx=ast.Store()):
                bound.add(node.id)
            case ast.Assign(targets=[ast.Name(id=target)], value=value) if target == name:
                values.append(value)
            case _:
                pass
    return name in bound and ("*" in bound or all(_reads(value) <= bound for value in values))


def jitted(tree: ast.Module) -> list[ast.FunctionDef]:
    """The kernels of a module: functions below `@jit`, `@triton.jit` or `@triton.jit(...)`."""

    def is_jit(node: ast.expr) -> bool:
        made = node.func if isinstance(node, ast.Call) else node
        return "jit" in (getattr(made, "attr", ""), getattr(made, "id", ""))

    nodes = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
    return [node for node in nodes if any(map(is_jit, node.decorator_list))]


def _top_level(tree: ast.Module) -> Iterator[ast.AST]:
    """Every node outside of functions and classes."""
    pending: list[ast.AST] = [tree]
    while pending:
        node = pending.pop()
        yield node
        if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            pending += ast.iter_child_nodes(node)


def _reads(value: ast.expr) -> set[str]:
    """Names that an expression takes from outside of itself."""
    names = [one for one in ast.walk(value) if isinstance(one, ast.Name)]
    own = {one.id for one in names if not isinstance(one.ctx, ast.Load)}
    own |= {one.arg for one in ast.walk(value) if isinstance(one, ast.arg)}
    return {one.id for one in names} - own


def without_thinking(text: str, *, tag: str) -> str | None:
    """The text outside of thinking; None if the last thinking does not end.

    A template may have opened the thinking in the prompt, so a lone `</think>` closes it, too.
    """
    kept: list[str] = []
    start, opened = 0, -1
    for found in _tags(text, tag=tag):
        if found.group() == f"<{tag}>":
            opened = found.start() if opened < 0 else opened
            continue
        kept.append(text[start:opened] if opened >= 0 else "")
        start, opened = found.end(), -1
    return None if opened >= 0 else "\n".join([*kept, text[start:]])


def _tags(text: str, *, tag: str) -> list[re.Match[str]]:
    """The tags of thinking in a text, but those in the strings of a block of Python."""
    found = list(re.finditer(rf"</?{re.escape(tag)}>", text))
    places = [one.start() for one in found]
    for block in reversed(_blocks(text) if found else ()):
        first, end = bisect_left(places, block.start), bisect_left(places, block.end)
        if first < end and parse(block.code) is not None:
            del found[first:end], places[first:end]
    return found


def _blocks(text: str) -> list[Block]:
    """All closed blocks, in the order of their ends. Fences in a module between tags are text."""
    tagged = _triton_blocks(text)
    modules = [block for block in tagged if block.info == PYTHON]
    starts = [block.start for block in modules]
    outside = [
        fence
        for fence in _fences(text)
        if not (at := bisect_left(starts, fence.start("marks")))
        or modules[at - 1].end < fence.start("marks")
    ]
    return sorted([*_fenced(text, outside), *tagged], key=lambda block: block.end)


def fenced_blocks(text: str) -> list[Block]:
    """Each closed fenced block; the closing fence is at least as long as the opening one."""
    return _fenced(text, _fences(text))


def _fences(text: str) -> list[re.Match[str]]:
    """The last lines with a fence."""
    return list(deque((one for one in _FENCE.finditer(text) if _is_fence(one)), MAX_MARKS))


def _is_fence(line: re.Match[str]) -> bool:
    words, info = line["before"].rstrip(), line["info"]
    if not words:
        return True
    is_named = _LANGUAGE.fullmatch(info) or (words[-1] in ":>" and len(info.split()) == 1)
    return line["marks"][0] == "`" and bool(is_named)


def _overlooked(text: str, name: str, *, after: int) -> Block | None:
    """The last and longest module between any two fences that defines a name, where an earlier
    block without an end or words about fences hide which of them open and close."""
    fences, tries = _fences(text) if name in text else [], _Tries(text)
    for last, closed in reversed(list(enumerate(fences))):
        if closed.start() <= after:
            break
        for opened in fences[max(0, last - MAX_INNER) : last]:
            if _closes(closed, opened) and tries.parses(opened.end(), _end(closed)):
                code = _between(text, opened, closed)
                if defines(code, name):
                    return Block(opened.end(), closed.start(), code, opened["info"])
    return None


def _fenced(text: str, fences: Sequence[re.Match[str]]) -> list[Block]:
    blocks: list[Block] = []
    index, tries = 0, _Tries(text)
    while index < len(fences):
        opened, close = fences[index], _closing(text, fences, index, tries)
        index += 1
        if close is not None:
            closed, index = fences[close], close + 1
            code = _between(text, opened, closed)
            blocks.append(Block(opened.end(), closed.start(), code, opened["info"]))
    return blocks


def _closing(text: str, fences: Sequence[re.Match[str]], index: int, tries: _Tries) -> int | None:
    """Index of the fence that closes a block; None if another block begins first, or none does.

    Where the next fence may be in a string, the first fence counts that makes the block Python.
    """
    opened, following = fences[index], fences[index + 1 : index + 1 + MAX_INNER]
    if following and _may_be_quoted(text[opened.end() : following[0].start("marks")]):
        for close, fence in enumerate(following, index + 1):
            if _closes(fence, opened) and tries.parses(opened.end(), _end(fence)):
                return close
    for close in range(index + 1, len(fences)):
        if _closes(fences[close], opened):
            return close
        if fences[close]["info"].strip():
            return None
    return None


def _closes(fence: re.Match[str], opened: re.Match[str]) -> bool:
    same, info = fence["marks"].startswith(opened["marks"]), fence["info"]
    is_end = not info.strip() or (info[0] in " \t<.,)*" and not _LANGUAGE.fullmatch(info))
    return same and is_end and "#" not in fence["before"]


def _between(text: str, opened: re.Match[str], closed: re.Match[str]) -> str:
    return _dedented(text[opened.end() + 1 : _end(closed)])


def _end(closed: re.Match[str]) -> int:
    return closed.start("marks") if closed["before"].strip() else closed.start()


def _dedented(code: str) -> str:
    """The code without the margin of its first statement."""
    first = _STATEMENT.search(code)
    margin = first[1] if first is not None else ""
    if not margin:
        return code
    return re.sub(rf"^[ \t]{{1,{len(margin)}}}", "", code, flags=re.MULTILINE)


def _may_be_quoted(before: str) -> bool:
    """True if a mark after this code may be in a string or a comment."""
    line = before[before.rfind("\n") + 1 :]
    return '"""' in before or "'''" in before or any(sign in line for sign in "\"'#")


class _Tries:
    """Attempts to parse parts of a text. Their whole length is limited, for linear time."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._left = MAX_TRIED

    def parses(self, start: int, end: int) -> bool:
        """True if there is an attempt left, and the part is Python."""
        self._left -= end - start + MIN_TRIED
        return self._left > 0 and parse(_dedented(self._text[start:end])) is not None


def _triton_blocks(text: str) -> list[Block]:
    """Each block between the tags, but those that hold fenced blocks. The first closing tag counts
    that makes the block Python, else the first one."""
    tags = list(deque(_TRITON.finditer(text), MAX_MARKS))
    blocks: list[Block] = []
    index, tries = 0, _Tries(text)
    while index < len(tags):
        opened, index = tags[index], index + 1
        ends = [one for one in range(index, min(len(tags), index + MAX_INNER)) if tags[one][1]]
        if opened[1] or not ends:
            continue
        parsed = (one for one in ends if tries.parses(opened.end(), tags[one].start()))
        last = next(parsed, None)
        closed = tags[ends[0] if last is None else last]
        code = _dedented(text[opened.end() : closed.start()].strip("\n"))
        if last is not None or "```" not in code:
            info = "" if last is None else PYTHON
            blocks.append(Block(opened.end(), closed.start(), code, info))
        index = (ends[0] if last is None else last) + 1
    return blocks
