"""A GGUF file -> a loaded model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from layactl.core import strict_json
from layactl.core.decision_spec import PLANS, SEQUENTIAL, DecisionSpec
from layactl.core.model_shape import Limits
from layactl.core.tensor_table import TOKEN_EMBEDDINGS
from layactl.core.tokenizer import Tokenizer
from layactl.engine.decider import respond
from layactl.engine.device import AUTO, CPU, choose_device
from layactl.engine.forward import ForwardPass
from layactl.engine.request import Request, internal_error, parse_request
from layactl.engine.text_side import read_text_side
from layactl.engine.threads import set_threads
from layactl.errors import ModelLoadError, NumericError, RequestError, UsageError, first_line
from layactl.gguf_file import names
from layactl.gguf_file.dialect import read_model
from layactl.gguf_file.reader import GgufFile
from layactl.kernels.choose import choose_kernels
from layactl.layouts.interface import Layout


class Model:
    """A loaded decision model. Its methods may be called from several threads at once.

    name: what answers carry as "model" (the file name without .gguf); limits: token budgets of a sequence;
    spec: the contract in force; notes: what the user should know about the file (clamped temperatures).
    """

    def __init__(
        self,
        *,
        name: str,
        layout: Layout,
        tokenizer: Tokenizer,
        limits: Limits,
        spec: DecisionSpec,
        forward: ForwardPass,
        source_sha256: str | None,
        notes: list[str],
        mapped_bytes: int = 0,
    ) -> None:
        self.name = name
        self.layout = layout
        self.tokenizer = tokenizer
        self.limits = limits
        self.spec = spec
        self.forward = forward
        self.source_sha256 = source_sha256
        self.notes = notes
        self._mapped_bytes = mapped_bytes

    @classmethod
    def from_gguf(
        cls,
        file: GgufFile,
        *,
        name: str,
        threads: int | None = None,
        spec_file: Path | None = None,
        kernels: str | None = None,
        max_len: int | None = None,
        plan: str | None = None,
        device: str = CPU,
    ) -> Model:
        """Load an open GGUF; see `layactl.load`.

        name: what answers carry as "model".
        """
        set_threads(threads)
        loaded = read_model(file, max_len)
        text = read_text_side(loaded, name=name, spec_file=spec_file)
        if plan is not None and plan not in PLANS:
            raise UsageError(f"no plan is called {plan!r:.40}", hint=f"plans: {', '.join(PLANS)}")
        place, notes = choose_device(device)
        in_force = plan or text.spec.plan.name
        if in_force not in PLANS:
            notes.append(f"the spec names plan {in_force}; {SEQUENTIAL} is used")
            in_force = SEQUENTIAL

        def build(place: str) -> ForwardPass:
            chosen, told = choose_kernels(text.spec.plan.kernels, kernels, device=place)
            notes.extend(told)
            return ForwardPass(loaded.weights, loaded.shape, text.layout, chosen, in_force)

        forward = _built(build, place, may_fall_back=device == AUTO, notes=notes)
        sha256 = loaded.file.keys.get(names.SOURCE_SHA256)
        return cls(
            name=name,
            layout=text.layout,
            tokenizer=text.tokenizer,
            limits=text.limits,
            spec=text.spec,
            forward=forward,
            source_sha256=str(sha256.value) if sha256 else None,
            notes=[*text.notes, *notes],
            mapped_bytes=loaded.weights.stored_bytes(TOKEN_EMBEDDINGS),
        )

    def decide(
        self, state: Any, questions: Mapping[str, Any], *, truncation: str = "allow", debug: bool = False
    ) -> dict[str, Any]:
        """Answer typed questions about a state.

        state: text, or any JSON value but None (a list is read as turns: a cut drops the oldest).
        questions: {id: {"type": "choice" | "score" | "noul", "instructions": ..., "criteria": ...}}.
        truncation: "error" refuses what does not fit instead of cutting it.
        debug: adds raw logits, temperature, token ids and markers to each answer.

        Returns the response body of the specification: `answers` (probabilities as unrounded doubles), `usage` in
        tokens, `latency_ms` and `timings` in milliseconds, `warnings`, `runtime`.
        Raises RequestError, whose `reason` and `param` say which field was refused and why.
        """
        return self.respond(self.parse({"state": state, "questions": questions, "truncation": truncation}), debug=debug)

    def decide_many(
        self, requests: Iterable[Mapping[str, Any]], *, debug: bool = False
    ) -> Iterator[dict[str, Any] | RequestError]:
        """Answer many requests, lazily and in order, each as if it were alone.

        requests: {"state": ..., "questions": {...}, "truncation"?: ...} each. Yields a response body, or the
        RequestError of a request that is refused (INTERNAL for an output that is not finite): one bad request never
        ends the run.
        """
        for request in requests:
            try:
                yield self.respond(self.parse(request), debug=debug)
            except RequestError as error:
                yield error
            except NumericError:
                yield internal_error()

    def parse(self, body: Any) -> Request:
        """Check a request given as Python values. Raises RequestError."""
        if not isinstance(body, Mapping):
            raise RequestError("BODY_NOT_OBJECT", "a request must be a mapping")
        body = {key: _plain(body[key]) for key in ("state", "questions", "truncation") if key in body}
        for key, value in body.items():
            strict_json.check_value(value, key)
        return parse_request(body, self.layout, self.spec)

    def respond(self, request: Request, *, debug: bool = False) -> dict[str, Any]:
        """Answer a checked request. Raises RequestError for what only rendering can tell (422)."""
        return respond(self, request, debug=debug)

    def warm_up(self) -> None:
        """One short forward pass: the first request finds threads, weights and code in place. It changes no result.

        Raises NumericError where the output is not finite: no answer of such a model would be one.
        """
        question = {"type": "noul", "instructions": "Ready?"}
        with suppress(RequestError):  # of a model whose limits no question fits: it says so to every request
            self.decide("warm-up " * 24, {"warm-up": question})

    def memory(self) -> dict[str, int]:
        """Where the weights are, in bytes: `packed` and `loaded` in memory, `mapped` in the file, of which only the
        rows of the tokens seen become resident.
        """
        return {**self.forward.weight_bytes(), "mapped": self._mapped_bytes}

    def runtime(self) -> dict[str, Any]:
        """The `runtime` block of a response: what the numbers depend on."""
        return {
            "layout": self.layout.name,
            "format": self.layout.format,
            "plan": self.forward.plan,
            "kernels": self.forward.kernels,
            "precision": self.forward.precision,
            "spec_sha256": self.spec.sha256,
            "calibration": self.spec.calibration.version,
        }


def _built(build: Callable[[str], ForwardPass], place: str, *, may_fall_back: bool, notes: list[str]) -> ForwardPass:
    """The forward pass on a device, or on the CPU where the device fails and was nobody's wish."""
    if place == CPU:
        return build(CPU)
    try:
        return build(place)
    except (RuntimeError, ModelLoadError) as error:  # out of memory, a missing kernel
        reason = first_line(error)
        if not may_fall_back:
            raise ModelLoadError(f"the model cannot be loaded on {place}: {reason:.200}") from None
        notes.append(f"{place} cannot be used ({reason:.200}); the CPU is")
        return build(CPU)


def _plain(value: Any) -> Any:
    """Tuples and other mappings as the list and dict the question rules speak of."""
    if isinstance(value, Mapping) and not isinstance(value, dict):
        value = dict(value)
    if isinstance(value, tuple):
        return list(value)
    return value
