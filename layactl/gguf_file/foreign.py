"""What a GGUF of neither dialect is, told by its keys, and what to use instead.

The keys were read in the sources of the programs that write these files. Each lacks something, or means something else
by a name, so none is guessed at.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase

from layactl.errors import GgufError
from layactl.gguf_file import names
from layactl.gguf_file.reader import GgufFile

_CONVERT = "convert the official checkpoint instead: layactl convert CHECKPOINT -o OUT.gguf"
_LISTED_KEYS = 6
_FACT_LENGTH = 80

# Keys without which a file of the laya dialect has no defined answer.
_LAYA_KEYS = (
    names.BLOCK_COUNT,
    names.CONTEXT_LENGTH,
    names.EMBEDDING_LENGTH,
    names.FEED_FORWARD_LENGTH,
    names.HEAD_COUNT,
    names.VOCAB_SIZE,
    names.NORM_EPS,
    names.ROPE_FREQ_BASE,
    names.ROPE_FREQ_BASE_SWA,
    names.SLIDING_WINDOW,
    names.SLIDING_WINDOW_PATTERN,
    names.HEAD_LAYERS,
    names.N_QTYPE,
    names.ACT_CLASSES,
    names.TEMPERATURE,
    names.MARKER_TOKEN_ID,
)


@dataclass(frozen=True)
class Kind:
    """A kind of file. marks: patterns of facts (`key`, `key=text`, `tensor NAME`), one of which tells it; unless: facts
    that clear a file of the suspicion.
    """

    what: str
    marks: tuple[str, ...]
    unless: tuple[str, ...] = ()


KINDS = (
    Kind("is a graph compiled for the ggmlc runtime", ("ggmlc.*", "general.architecture=ggmlc")),
    Kind("is in the private Laya layout of the Statim runtime", ("tokenizer.statim.*", "statim.*")),
    Kind("is in the decision_head layout of a llama.cpp branch", ("*.decision_head.*", "*.qtype_token_ids")),
    Kind(
        "is in a private Laya layout of another runtime",
        ("laya.hidden_size", "laya.num_layers", "laya.weight_layout", "laya.temperature.[0-9]", "laya.encoder.*"),
    ),
    Kind("is a Julia model, which asks its questions in another prompt", ("julia.*", "general.architecture=julia")),
    Kind(
        "is a decision head without its encoder",
        ("laya-head.*", "general.architecture=laya-head", "tensor scorer.*", "tensor cls.norm.*"),
        unless=("tensor token_embd.*",),
    ),
    Kind("is a decision model, but no Laya", ("*.decision.type",), unless=(f"{names.DECISION_TYPE}=laya",)),
    Kind(
        "is a ModernBERT encoder; a decision head that ships beside it is not read",
        (f"general.architecture={names.LLAMA_CPP_ARCHITECTURE}",),
        unless=(names.DECISION_TYPE,),
    ),
    Kind(
        "is a Laya file of llama.cpp pull request #29363 or another early converter",
        (f"general.architecture={names.LAYA_ARCHITECTURE}",),
        # The converters of the dialect name the tokenizer; a file without the name may still lack nothing.
        unless=("decision.laya.*", "complete"),
    ),
    Kind(
        "is not a Laya GGUF",
        ("*",),
        unless=(
            f"general.architecture={names.LAYA_ARCHITECTURE}",
            f"general.architecture={names.LLAMA_CPP_ARCHITECTURE}",
        ),
    ),
)


def foreign_error(file: GgufFile) -> GgufError | None:
    """None for a file that the reader of a dialect should take on."""
    lacking = [key for key in _LAYA_KEYS if key not in file.keys]
    facts = set(_facts(file)) if lacking else {*_facts(file), "complete"}
    kind = next((kind for kind in KINDS if _any(facts, kind.marks) and not _any(facts, kind.unless)), None)
    if kind is None:
        return None
    architecture = file.text(names.ARCHITECTURE, "")
    what = f"{kind.what} (general.architecture is {architecture!r:.60})"
    if architecture == names.LAYA_ARCHITECTURE and lacking:
        more = f" and {len(lacking) - _LISTED_KEYS} more" if len(lacking) > _LISTED_KEYS else ""
        what += f"; it lacks {', '.join(lacking[:_LISTED_KEYS])}{more}"
    return GgufError(what, where=str(file.path), hint=_CONVERT)


def _facts(file: GgufFile) -> Iterator[str]:
    for key, value in file.keys.items():
        yield key
        if isinstance(value.value, str) and len(value.value) <= _FACT_LENGTH:
            yield f"{key}={value.value}"
    for name in file.tensors:
        yield f"tensor {name}"


def _any(facts: Iterable[str], patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(fact, pattern) for pattern in patterns for fact in facts)
