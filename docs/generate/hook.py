"""Hook of MkDocs (mkdocs.yml, `hooks`): adds the generated pages, links to them, renders formulas.

A link to a generated page goes to its row of `reference/index.md` in the sources, which are also
read where nothing was generated, and to the page itself on the site.

Formulas are written as GitHub shows them, a fenced block `math` or $`inline`$, and become MathML,
which browsers draw by themselves: the site needs no script and no network. Each is inside an
element that Markdown knows: it takes a line that begins with `<math` for a paragraph of its own.
"""

from __future__ import annotations

import re
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```math\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TO_ROW = re.compile(r"\]\(((?:\.\./)?reference/)index\.md#([\w-]+)\)")
ROW = re.compile(r'<a id="([\w-]+)"></a>([^|]+?) \|')
INLINE = re.compile(r"\$`([^`]+)`\$")


def on_files(files: Any, config: Any) -> Any:
    """Adds each page as a file that lies nowhere on disk."""
    sys.path.insert(0, str(ROOT))
    try:
        from docs.generate.pages import PAGES
    finally:
        sys.path.remove(str(ROOT))
    # MkDocs is installed by `make docs` alone; the type checker runs without it.
    file = import_module("mkdocs.structure.files").File
    for name, made in PAGES.items():
        files.append(file.generated(config, name, content=made()))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """The page with links to the generated pages, and its formulas as MathML."""
    markdown = ROW.sub(r"[\2](\1.md) |", TO_ROW.sub(r"](\1\2.md)", markdown))
    if "```math" not in markdown and "$`" not in markdown:
        return markdown
    convert = import_module("latex2mathml.converter").convert
    shown = BLOCK.sub(
        lambda found: f'<div class="formula">{convert(found[1], display="block")}</div>', markdown
    )
    return INLINE.sub(lambda found: f"<span>{convert(found[1])}</span>", shown)
