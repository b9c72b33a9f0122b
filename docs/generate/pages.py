"""The generated pages by their path in the documentation."""

from __future__ import annotations

from collections.abc import Callable

from docs.generate.commands import commands_page
from docs.generate.exits import exits_page
from docs.generate.http import http_page
from docs.generate.keys import keys_page
from docs.generate.metrics import metrics_page
from docs.generate.python import python_page
from docs.generate.store import store_page
from docs.generate.verdicts import verdicts_page

PAGES: dict[str, Callable[[], str]] = {
    "reference/keys.md": keys_page,
    "reference/commands.md": commands_page,
    "reference/exit-codes.md": exits_page,
    "reference/store.md": store_page,
    "reference/metrics.md": metrics_page,
    "reference/verdicts.md": verdicts_page,
    "reference/http.md": http_page,
    "reference/python.md": python_page,
}
