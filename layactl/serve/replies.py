"""What goes back to a client: a reply, or the error that becomes one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from layactl.core import strict_json
from layactl.errors import RequestError

JSON, TEXT = "application/json", "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True)
class Reply:
    """reason: the error's word, None for an answer; headers: beyond those every reply has."""

    status: int
    body: bytes = b""
    content_type: str | None = JSON
    headers: Mapping[str, str] = field(default_factory=dict)
    reason: str | None = None


class HttpError(RequestError):
    """A refusal with headers of its own."""

    def __init__(self, code: int, reason: str, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(reason, message, code=code)
        self.headers = headers or {}


def json_reply(value: Any) -> Reply:
    """A JSON document, spelled as every other command spells it."""
    return Reply(200, strict_json.dumps(value).encode("utf-8") + b"\n")


def error_reply(error: RequestError) -> Reply:
    """The error envelope (specification, Errors)."""
    body = strict_json.dumps({"error": error.to_json()}).encode("utf-8", "backslashreplace") + b"\n"
    headers = error.headers if isinstance(error, HttpError) else {}
    return Reply(error.code, body, headers=headers, reason=error.reason)


def bad_message(message: str, code: int = 400) -> HttpError:
    """A message that is not HTTP as this server speaks it."""
    return HttpError(code, "INVALID_REQUEST", message)


def not_found(path: str) -> HttpError:
    return HttpError(404, "NOT_FOUND", f"there is no {path!r:.200}")


def method_not_allowed(method: str, path: str, allowed: str) -> HttpError:
    return HttpError(405, "METHOD_NOT_ALLOWED", f"{path} takes {allowed}, not {method!r:.40}", {"Allow": allowed})


def unauthorized() -> HttpError:
    return HttpError(401, "UNAUTHORIZED", "a valid API key is required", {"WWW-Authenticate": "Bearer"})


def loading() -> HttpError:
    return HttpError(503, "LOADING", "the model is being loaded", {"Retry-After": "1"})


def overloaded() -> HttpError:
    return HttpError(429, "OVERLOADED", "too many requests are waiting", {"Retry-After": "1"})


def stopping() -> HttpError:
    return HttpError(503, "UNAVAILABLE", "the server is stopping")


def too_slow() -> HttpError:
    return HttpError(408, "REQUEST_TIMEOUT", "the request did not arrive in time")
