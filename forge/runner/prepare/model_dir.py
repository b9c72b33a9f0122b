"""The directory of a model whose chat template `model.chat_template` replaces.

Whatever reads a run's model reads a directory. So the template is written into one, and trainer,
engines, publishes, exports and `forge chat` find it there as any model's own.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from forge.data.chat import ChatTemplate
from forge.data.template import FILE, SOURCES

if TYPE_CHECKING:
    from forge.config.schema import ModelTable


def with_template(model: ModelTable, folder: Path) -> ModelTable:
    """The located model, with its path replaced by `folder`: links to its files, and the chat
    template. The same model without `chat_template`. Raises ConfigError for one that it cannot use.
    """
    if model.chat_template is None or model.path is None:
        return model
    source = Path(model.path)
    chat = ChatTemplate.load(source, chat_template=model.chat_template)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for path in source.iterdir():
        if path.is_file() and path.name not in SOURCES:
            (folder / path.name).symlink_to(path.resolve())
    (folder / FILE).write_text(chat.template.source, encoding="utf-8")
    return model.model_copy(update={"path": str(folder)})
