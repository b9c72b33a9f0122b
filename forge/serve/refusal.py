# pyright: strict
"""Refusals of engines and `forge serve`: the bound of a body, and errors in OpenAI's format."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.responses import Response

logger = logging.getLogger(__name__)

MAX_BODY_BYTES = 64 << 20
"""Eight times a prompt of a million tokens."""


def openai_error(status: int, message: str) -> Response:
    """An error answer, as clients of OpenAI's API read it."""
    from starlette.responses import JSONResponse

    message = " ".join(message.split())
    logger.info("refused with %d: %s", status, message)
    kind = "server_error" if status >= 500 else "invalid_request_error"
    return JSONResponse({"error": {"message": message, "type": kind}}, status_code=status)
