"""`layactl serve`."""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from layactl.cli.models import ModelChoice
from layactl.cli.options import Device, FolderOuttype, Plan
from layactl.cli.output import error_line, note

if TYPE_CHECKING:
    from collections.abc import Callable

    from layactl.serve.info import Served


_LISTEN, _ACCESS, _LIMITS, _ENGINE, _LOGS = "Listening", "Who may call", "Limits", "Engine", "What is said"


def _option(panel: str | None, *names: str, help: str, **more: Any) -> Any:
    """An option that its environment variable may give: --max-items is LAYACTL_MAX_ITEMS."""
    variable = _variable(next(name for name in names if name.startswith("--")))
    return typer.Option(*names, help=help, rich_help_panel=panel, envvar=variable, show_envvar=True, **more)


def _variable(name: str) -> str:
    return "LAYACTL_" + name.split("/")[0].removeprefix("--").upper().replace("-", "_")


def _listed(panel: str, name: str, *, metavar: str, help: str) -> Any:
    """An option that may be repeated. Its variable is read by `_given`: typer would split it at spaces, and take an
    empty one for none.
    """
    return typer.Option(name, metavar=metavar, help=f"{help} \\[env var: {_variable(name)}]", rich_help_panel=panel)


def _given(values: list[str] | None, name: str) -> list[str]:
    """The option's values, else the one of its variable, also where that is empty."""
    variable = _variable(name)
    return list(values) if values else [os.environ[variable]] if variable in os.environ else []


_MODEL = _option(None, "-m", "--model", metavar="MODEL", help="A GGUF file, or a checkpoint folder (converted once).")
_ALIAS = _option(None, "-a", "--alias", metavar="NAME", help="The model's name in answers.")
_HOST = _option(_LISTEN, "--host", metavar="H", help="Address to listen on.")
_PORT = _option(_LISTEN, "--port", metavar="N", min=0, max=65535, help="Port; 0 takes a free one.")
_SOCKET = _option(_LISTEN, "--socket", metavar="PATH", help="A Unix socket instead of host and port.")
_CERTIFICATE = _option(_LISTEN, "--ssl-cert-file", metavar="F", help="TLS: the certificate chain, PEM.")
_CERTIFICATE_KEY = _option(_LISTEN, "--ssl-key-file", metavar="F", help="TLS: its private key, PEM.")
_API_KEY = _listed(_ACCESS, "--api-key", metavar="K", help="A key that is accepted; repeatable, several by commas.")
_API_KEY_FILE = _option(_ACCESS, "--api-key-file", metavar="F", help="Keys that are accepted, one a line.")
_CORS = _listed(_ACCESS, "--cors-origin", metavar="ORIGIN", help="Whose pages may call, * for all; repeatable.")
_QUEUE = _option(_LIMITS, "--queue", metavar="N", min=0, max=10_000, help="Requests that may wait while one runs.")
_ITEMS = _option(_LIMITS, "--max-items", metavar="N", min=1, max=10_000, help="Questions, or candidates, of a request.")
_TIMEOUT = _option(
    *(_LIMITS, "--timeout"),
    metavar="SECONDS",
    min=0.1,
    max=86_400,
    help="For a request to arrive, an idle connection to speak, an answer to be taken.",
)
_SPEC = _option(_ENGINE, "--spec", metavar="SPEC.json", help="Replace the model's decision.spec as a whole.")
_PLAN = _option(_ENGINE, "--plan", help="The questions of a request one by one, or packed. Default: the spec's.")
_KERNELS = _option(
    _ENGINE, "--kernels", metavar="K", help="auto, onednn, onednn-bf16, reference. Default: the spec's, else auto."
)
_THREADS = _option(_ENGINE, "-t", "--threads", metavar="N", min=1, max=1024, help="Default: the physical cores.")
_DEVICE = _option(_ENGINE, "--device", help="Where the forward pass runs; auto falls back to the CPU.")
_UNCALIBRATED = _option(_ENGINE, "--allow-uncalibrated", help="Score executors without a router calibration.")
_WARMUP = _option(_ENGINE, "--warmup/--no-warmup", help="A short forward pass before the first request.")
_OUTTYPE = _option(_ENGINE, "--outtype", help="For a folder: type of the 2-D weights.")
_CACHE_DIR = _option(_ENGINE, "--cache-dir", metavar="DIR", help="For a folder: where conversions are kept.")
_MAX_LEN = _option(_ENGINE, "--max-len", metavar="N", help="For a file that stores no sequence limit.")
_METRICS = _option(_LOGS, "--metrics", help="Serve GET /metrics for Prometheus.")
_ACCESS_LOG = _option(_LOGS, "--access-log", metavar="FILE|-", help="One JSON line a reply; - is standard output.")
_DEBUG = _option(_LOGS, "--debug", help="Logits and token ids in answers, /v1/decision/render, tracebacks.")
_QUIET = _option(_LOGS, "-q", "--quiet", help="No notes on stderr.")


def serve_command(
    model: Annotated[Path, _MODEL],
    alias: Annotated[str | None, _ALIAS] = None,
    host: Annotated[str, _HOST] = "127.0.0.1",
    port: Annotated[int, _PORT] = 8090,
    socket: Annotated[Path | None, _SOCKET] = None,
    ssl_cert_file: Annotated[Path | None, _CERTIFICATE] = None,
    ssl_key_file: Annotated[Path | None, _CERTIFICATE_KEY] = None,
    api_key: Annotated[list[str] | None, _API_KEY] = None,
    api_key_file: Annotated[Path | None, _API_KEY_FILE] = None,
    cors_origin: Annotated[list[str] | None, _CORS] = None,
    queue: Annotated[int, _QUEUE] = 4,
    max_items: Annotated[int, _ITEMS] = 16,
    timeout: Annotated[float, _TIMEOUT] = 30.0,
    spec: Annotated[Path | None, _SPEC] = None,
    plan: Annotated[Plan | None, _PLAN] = None,
    kernels: Annotated[str | None, _KERNELS] = None,
    threads: Annotated[int | None, _THREADS] = None,
    device: Annotated[Device, _DEVICE] = Device.cpu,
    allow_uncalibrated: Annotated[bool, _UNCALIBRATED] = False,
    warmup: Annotated[bool, _WARMUP] = True,
    outtype: Annotated[FolderOuttype, _OUTTYPE] = FolderOuttype.f16,
    cache_dir: Annotated[Path | None, _CACHE_DIR] = None,
    max_len: Annotated[int | None, _MAX_LEN] = None,
    metrics: Annotated[bool, _METRICS] = False,
    access_log: Annotated[str | None, _ACCESS_LOG] = None,
    debug: Annotated[bool, _DEBUG] = False,
    quiet: Annotated[bool, _QUIET] = False,
) -> None:
    """Answer over HTTP: POST /v1/systemone and /v1/router/score, GET /health, /v1/models, /props, /openapi.json.

    One request is computed at a time, in arrival order. SIGTERM or Ctrl-C stops; a second one stops at once.
    """
    from layactl.serve.access_log import access_log as open_access_log
    from layactl.serve.lifecycle import serve
    from layactl.serve.settings import DebugHooks, Settings, api_keys, cors_origins, tls_context

    settings = Settings(
        model_path=str(model),
        host=host,
        port=port,
        socket=socket,
        keys=api_keys(_given(api_key, "--api-key"), api_key_file),
        queue=queue,
        max_items=max_items,
        timeout=timeout,
        cors_origins=cors_origins(_given(cors_origin, "--cors-origin")),
        metrics=metrics,
        debug=debug,
        allow_uncalibrated=allow_uncalibrated,
        warm_up=warmup,
        tls=tls_context(ssl_cert_file, ssl_key_file),
        hooks=DebugHooks.from_environment() if debug else DebugHooks(),
    )
    if settings.public and not settings.keys:
        note(f"{host} may be reached by others, and no --api-key is set", quiet)
    plan_name = plan.value if plan else None
    choice = ModelChoice(
        *(model, outtype, cache_dir, threads, spec, kernels, quiet, max_len, plan_name),
        name=alias,
        device=device.value,
    )

    def tell(url: str, served: Served | None) -> None:
        if served is None:
            note(f"listening on {url}, loading {model}", quiet)
        else:
            runtime = f"{served.model.forward.kernels}, {served.threads} threads"
            note(f"ready on {url}: {served.model.name} ({runtime})", quiet)

    def log(error: BaseException) -> None:
        error_line(f"internal error: {type(error).__name__}: {error}")
        if debug:
            traceback.print_exception(error, file=sys.stderr)

    log_access = open_access_log(access_log, note)
    serve(settings, _loader(choice, allow_uncalibrated), tell=tell, log=log, log_access=log_access)


def _loader(choice: ModelChoice, allow_uncalibrated: bool) -> Callable[[Callable[[], None]], Served]:
    def load(check: Callable[[], None]) -> Served:
        from layactl.engine.threads import set_threads
        from layactl.router.score import Router
        from layactl.serve.info import Served

        resolved = choice.resolve(check)
        check()
        model = choice.load(resolved)
        router, threads = Router(model, allow_uncalibrated=allow_uncalibrated), set_threads(None)
        served = Served(model, router, threads, resolved.file.path, resolved.cached)
        # Probed now, and not while the first client waits.
        _ = served.router.state_split
        return served

    return load
