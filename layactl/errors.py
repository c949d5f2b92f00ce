"""Every error a user can cause, and what becomes of it.

    LayactlError                 exit 1   one line `error: WHAT (WHERE)`, then an optional `hint: ...`
    |-- UsageError               exit 2   the command line cannot be carried out as written
    |-- CheckpointError          exit 1   a checkpoint folder is not what the converter accepts
    |-- GgufError                exit 1   a GGUF file is damaged or is no Laya model
    |-- ModelLoadError           exit 1   a sound file this version cannot run
    |-- SpecError                exit 1   a decision.spec breaks a rule; the message names the field
    |-- InputError               exit 1   an input file cannot be read, or is not what it must be
    |-- NumericError             exit 1   a model's output is not finite
    |-- OutputError              exit 1   a result cannot be written
    |-- ServerError              exit 1   a server cannot be reached, or does not answer as a decision server does
    `-- RequestError             exit 1   one request is refused; carries the HTTP status and the reason word

`cli.app` is the only place that turns an error into text and an exit code. A RequestError inside a JSONL run
becomes that line's error object and the run goes on.
"""

from __future__ import annotations

from typing import Any


class LayactlError(Exception):
    """Base of every expected error.

    message: what was found; where: the file or field it was found in; hint: what to do next.
    """

    exit_code = 1

    def __init__(self, message: str, *, where: str | None = None, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.where = where
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} ({self.where})" if self.where else self.message


class UsageError(LayactlError):
    """The command line cannot be carried out as written."""

    exit_code = 2


class CheckpointError(LayactlError):
    """A checkpoint folder lacks something, or holds something the converter does not understand."""


class GgufError(LayactlError):
    """A GGUF file is damaged, or is not a Laya model."""


class ModelLoadError(LayactlError):
    """A readable model file whose contents this version cannot run."""


class SpecError(LayactlError):
    """A decision.spec breaks a rule of its section."""


class InputError(LayactlError):
    """An input file cannot be read, or does not hold what it must."""


class NumericError(LayactlError, ArithmeticError):
    """A model's output is not finite: its weights are damaged, or were never sound."""

    def __init__(self, what: str) -> None:
        """what: the question or candidate it was found in."""
        super().__init__(f"{what}: the model's output is not finite", hint="the model file may be damaged")


class OutputError(LayactlError):
    """A result cannot be written where it was asked for."""


class ServerError(LayactlError):
    """A server cannot be reached, or is no decision server."""


# HTTP status -> the `type` word of the error object (cli-contract, Objects).
_STATUS_TYPES = {
    401: "authentication_error",
    404: "not_found_error",
    429: "overloaded_error",
    500: "server_error",
    501: "not_supported_error",
    503: "unavailable_error",
}


class RequestError(LayactlError):
    """One request is refused.

    reason: the specification's upper-case word; param: the JSON path of the bad field, `questions.topic.criteria`;
    code: the HTTP status, 400 unless the specification says another.
    """

    def __init__(self, reason: str, message: str, *, param: str | None = None, code: int = 400) -> None:
        super().__init__(message, where=param)
        self.reason = reason
        self.param = param
        self.code = code

    def to_json(self) -> dict[str, Any]:
        """The error object: `{"code", "type", "reason", "message", "param"?}`."""
        error: dict[str, Any] = {
            "code": self.code,
            "type": _STATUS_TYPES.get(self.code, "invalid_request_error"),
            "reason": self.reason,
            "message": self.message,
        }
        if self.param is not None:
            error["param"] = self.param
        return error


def first_line(error: BaseException) -> str:
    """What a library's error says, without what follows its first line; its type where it says nothing."""
    return (str(error) or type(error).__name__).splitlines()[0]
