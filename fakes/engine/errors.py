"""vLLM's error bodies: what each exception becomes on the wire.

Source: vLLM 0.32, ``entrypoints/serve/exception_handling``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from starlette.responses import JSONResponse

from fakes.engine.core import EngineDeadError

MAX_INPUT_CHARS = 200
MAX_REPORTED_ERRORS = 10
SCHEMA_MARKERS = frozenset({"str", "int", "float", "bool", "list", "dict", "none", "union"})


def install(app: FastAPI) -> None:
    """Register the handlers."""
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(RequestValidationError, _validation)
    app.add_exception_handler(EngineDeadError, _dead)
    app.add_exception_handler(Exception, _unexpected)


def sanitize_message(message: str) -> str:
    """Strip memory addresses, tracebacks and file paths, as vLLM does."""
    message = re.sub(r" at 0x[0-9a-fA-F]+>", ">", message)
    message = re.sub(r'\n?\s*File "[^"]+", line \d+, in \S+(\n\s+.*)?', "", message)
    message = re.sub(r"/(?:home|usr|opt|var|tmp|root|lib|mnt|srv)(?:/[\w.\-]+)+", "<path>", message)
    message = re.sub(r"(?:/[\w\-]+)+/[\w\-]+\.\w+", "<path>", message)
    return message.strip()


def error_body(message: str, kind: str, status: int, param: str | None = None) -> dict[str, Any]:
    """Return the body of an error answer."""
    return {
        "error": {
            "message": sanitize_message(message),
            "type": kind,
            "param": param,
            "code": status,
        }
    }


def _answer(status: int, message: str, kind: str, param: str | None = None) -> JSONResponse:
    return JSONResponse(error_body(message, kind, status, param), status)


async def _dead(request: Request, error: Exception) -> JSONResponse:
    return _answer(500, str(error), "InternalServerError")


async def _unexpected(request: Request, error: Exception) -> JSONResponse:
    """Answer an engine error, and close the connection.

    vLLM closes it as well, but without saying so: Starlette raises the error once more after the
    answer, and uvicorn then closes. A client that sends its next request on that connection at
    once may lose it. The header takes that race out, so that a run can be repeated.
    """
    answer = _answer(500, str(error), "InternalServerError")
    answer.headers["connection"] = "close"
    return answer


async def _http(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    return _answer(error.status_code, error.detail, HTTPStatus(error.status_code).phrase)


async def _validation(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    errors = error.errors()
    label = "error" if len(errors) == 1 else "errors"
    lines = [f"{len(errors)} validation {label}:"]
    lines += [f"  {_describe(item)}" for item in errors[:MAX_REPORTED_ERRORS]]
    param = _clean_location(errors[0]["loc"])
    return _answer(400, "\n".join(lines), HTTPStatus.BAD_REQUEST.phrase, param)


def _describe(item: dict[str, Any]) -> str:
    item = dict(item)
    if "input" in item:
        item["input"] = _summary(item["input"])
    item["loc"] = _clean_location(item["loc"])
    return str(item)


def _summary(value: Any) -> str:
    if isinstance(value, list | dict):
        return f"<{type(value).__name__} of {len(value)} items>"
    text = str(value)
    return text if len(text) <= MAX_INPUT_CHARS else text[:MAX_INPUT_CHARS] + "...[truncated]"


def _clean_location(location: Sequence[Any]) -> str:
    """Join a location without pydantic's internal segments (``list[dict[str,any]]``)."""
    parts = [str(part) for part in location]
    kept = [part for part in parts if not _is_internal(part)]
    return ".".join(kept or parts)


def _is_internal(part: str) -> bool:
    return bool(re.search(r"[\[\]{}()]", part)) or part.lower() in SCHEMA_MARKERS
