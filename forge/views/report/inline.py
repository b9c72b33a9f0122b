"""Embeds an SVG document in a page: unique ids, colours of the page, a description in words.

The document comes from `draw`, whose labels contain stored texts; it is parsed, and only known
drawing elements are kept: a script, foreign object or link cannot get through.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Mapping

SVG = "http://www.w3.org/2000/svg"
_HREF = "{http://www.w3.org/1999/xlink}href"
_KEPT = frozenset(("svg", "g", "defs", "path", "use", "text", "clipPath", "rect", "pattern"))
"""Elements of a drawing; the rest (metadata, style) is dropped."""
_FONT = re.compile(r"font(?:-size)?: ?(?:[\d.]+px )?'DejaVu Sans'[^;]*;?|font-family:[^;]*;?")
_URL = re.compile(r"url\(#([^)]+)\)")


def inline_svg(
    document: str, *, name: str, title: str, description: str, colors: Mapping[str, str]
) -> str:
    """The `<svg>` element for a page.

    Args:
        name: prefix of every id in it, since a page has several pictures.
        colors: colour of the document to its replacement, such as `var(--ink)`.
    """
    root = ET.fromstring(document)
    _strip(root)
    for element in root.iter():
        _adopt(element, name, colors)
    for key in ("width", "height", "version", "id"):
        root.attrib.pop(key, None)
    root.set("role", "img")
    root.set("aria-labelledby", f"{name}-title {name}-words")
    words = ET.Element(f"{{{SVG}}}desc", {"id": f"{name}-words"})
    words.text = description
    head = ET.Element(f"{{{SVG}}}title", {"id": f"{name}-title"})
    head.text = title
    root[:0] = [head, words]
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
    return ET.tostring(root, encoding="unicode", short_empty_elements=False)


def _strip(parent: ET.Element) -> None:
    for child in list(parent):
        if child.tag.rpartition("}")[2] in _KEPT:
            _strip(child)
        else:
            parent.remove(child)


def _adopt(element: ET.Element, name: str, colors: Mapping[str, str]) -> None:
    attributes = element.attrib
    if "id" in attributes:
        attributes["id"] = f"{name}-{attributes['id']}"
    if (link := attributes.pop(_HREF, "")).startswith("#"):
        attributes["href"] = f"#{name}-{link[1:]}"
    for key in ("clip-path", "style", "fill", "stroke"):
        if key in attributes:
            value = _URL.sub(rf"url(#{name}-\1)", attributes[key])
            attributes[key] = re.sub(
                r"#[0-9a-f]{6}\b", lambda match: colors.get(match[0], match[0]), value
            )
    if "style" in attributes:
        attributes["style"] = _FONT.sub(_keep_size, attributes["style"]).strip()


def _keep_size(match: re.Match[str]) -> str:
    """Drops the font, which is the page's, and keeps the size."""
    size = re.search(r"[\d.]+px", match[0])
    return f"font-size: {size[0]};" if size else ""
