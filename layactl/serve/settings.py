"""What a server was told: everything its other parts look up, checked once."""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from layactl.errors import InputError, UsageError

_MOST_KEY_BYTES = 2**20


@dataclass(frozen=True)
class DebugHooks:
    """Delays and faults that make a test of timing certain; read from the environment under --debug only."""

    load_delay: float = 0.0
    job_delay: float = 0.0
    throw: str | None = None

    @staticmethod
    def from_environment() -> DebugHooks:
        """LAYACTL_DEBUG_LOAD_DELAY_MS, LAYACTL_DEBUG_JOB_DELAY_MS, LAYACTL_DEBUG_THROW. Raises UsageError."""
        throw = os.environ.get("LAYACTL_DEBUG_THROW") or None
        if throw not in (None, "worker", "http"):
            raise UsageError(f"must be worker or http, not {throw!r:.40}", where="LAYACTL_DEBUG_THROW")
        return DebugHooks(_seconds("LAYACTL_DEBUG_LOAD_DELAY_MS"), _seconds("LAYACTL_DEBUG_JOB_DELAY_MS"), throw)


def _seconds(variable: str) -> float:
    text = os.environ.get(variable) or "0"
    if not text.isdecimal() or len(text) > 7:
        raise UsageError(f"must be a number of milliseconds, not {text!r:.40}", where=variable)
    return int(text) / 1000.0


@dataclass(frozen=True)
class Settings:
    """model_path: as it was given; keys: accepted API keys, none = open to everybody; queue: requests that may wait
    while one runs; max_items: questions or candidates of a request; timeout: seconds for a request to arrive, for an
    idle connection to speak and for a client to take its answer; cors_origins: whose pages may call, "*" = all.
    """

    model_path: str
    host: str = "127.0.0.1"
    port: int = 8090
    socket: Path | None = None
    keys: frozenset[str] = frozenset()
    queue: int = 4
    max_items: int = 16
    timeout: float = 30.0
    cors_origins: frozenset[str] = frozenset()
    metrics: bool = False
    debug: bool = False
    allow_uncalibrated: bool = False
    warm_up: bool = True
    tls: ssl.SSLContext | None = None
    hooks: DebugHooks = field(default_factory=DebugHooks)

    @property
    def public(self) -> bool:
        """Whether others than this machine's users may reach the server."""
        return self.socket is None and self.host not in ("127.0.0.1", "::1", "localhost")


def api_keys(given: Sequence[str], file: Path | None) -> frozenset[str]:
    """The keys of --api-key (several are separated by commas) and of a file with one a line; blank lines and # comments
    are none. Raises UsageError, InputError: a key that cannot be sent, or an option that gives none.
    """
    keys: set[str] = set()
    for text in given:
        keys |= _sound_keys(text.split(","), "--api-key")
    if file is not None:
        keys |= _sound_keys(_lines(file), str(file))
    return frozenset(keys)


def _sound_keys(texts: Sequence[str], where: str) -> set[str]:
    keys = {text.strip() for text in texts} - {""}
    if not keys:
        # An unset shell variable must not open the server to everybody.
        raise UsageError("no API key is given", where=where)
    if any(not key.isascii() or not key.isprintable() or " " in key for key in keys):
        raise UsageError("an API key must be printable ASCII without spaces", where=where)
    return keys


def _lines(file: Path) -> list[str]:
    try:
        with file.open("rb") as handle:
            data = handle.read(_MOST_KEY_BYTES + 1)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=str(file)) from None
    if len(data) > _MOST_KEY_BYTES:
        raise InputError(f"is larger than {_MOST_KEY_BYTES} bytes", where=str(file))
    lines = data.decode("utf-8", "replace").splitlines()
    return [line for line in lines if not line.lstrip().startswith("#")]


_ORIGIN = re.compile(r"https?://[^/\s,?#]+")


def cors_origins(given: Sequence[str]) -> frozenset[str]:
    """The origins of --cors-origin, several separated by commas. Raises UsageError for what no browser sends."""
    origins = {text.strip() for value in given for text in value.split(",")} - {""}
    for origin in origins - {"*", "null"}:
        if not _ORIGIN.fullmatch(origin):
            hint = "such as https://app.example, without a path"
            raise UsageError(f"{origin!r:.80} is no origin", where="--cors-origin", hint=hint)
    return frozenset(origins)


def tls_context(certificate: Path | None, key: Path | None) -> ssl.SSLContext | None:
    """TLS by a certificate chain and its private key, both PEM; None where neither is given.

    Raises UsageError where one is missing, InputError where they cannot be used.
    """
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        missing = "--ssl-cert-file" if certificate is None else "--ssl-key-file"
        raise UsageError("a certificate and its key go together", where=missing)
    for file in (certificate, key):
        _lines(file)
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        # No passphrase is asked for: a server starts without anybody at its terminal.
        made.load_cert_chain(certificate, key, password="")
    except (ssl.SSLError, OSError) as error:
        reason = getattr(error, "reason", None) or error.strerror or error
        raise InputError(
            f"the certificate and key cannot be used: {reason}",
            where=f"{certificate}, {key}",
            hint="both are PEM, the key belongs to the certificate and has no passphrase",
        ) from None
    return made
