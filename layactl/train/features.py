"""Hidden states of a frozen encoder, computed once a sequence and kept: an append-only, content-addressed store.

STORE/<trunk>/<sha256>.safetensors: each file is called by the hash of its bytes and holds (T, d) float32 states by the
hash of their token ids; <trunk> is the hash of what the states depend on. Files are added whole and never changed, so
runs, splits and data sets share one store. A sequence of T tokens takes 4 T d bytes.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from layactl.durable import replacing
from layactl.errors import InputError, OutputError
from layactl.reporting.record_stream import file_sha256
from layactl.train.examples import Example
from layactl.train.network import EncoderNetwork

FORMAT = "layactl.features/1"
_OWN_NAME = re.compile(r"[0-9a-f]{64}\.safetensors")
# Of a file of the store: what a stopped run loses at most.
_SHARD_BYTES = 64 * 2**20


@dataclass(frozen=True)
class Encoded:
    """found: sequences the store had; added: those computed now; dropped: damaged files, removed; stopped: whether a
    stop came before all were there.
    """

    found: int
    added: int
    dropped: Sequence[str]
    stopped: bool = False


class FeatureStore:
    """The states of one trunk.

    trunk: what they depend on, beside the token ids. Raises OutputError where the folder cannot be made.
    """

    def __init__(self, root: Path, trunk: Mapping[str, Any]) -> None:
        text = json.dumps({"format": FORMAT, **trunk}, sort_keys=True)
        self.folder = root / hashlib.sha256(text.encode()).hexdigest()[:32]
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError(f"cannot be made: {error.strerror}", where=str(self.folder)) from None
        self.dropped: list[str] = []
        self._file_of: dict[str, Any] = {}
        for path in sorted(self.folder.glob("*.safetensors")):
            # What is called otherwise is not of the store.
            if _OWN_NAME.fullmatch(path.name) and path.is_file():
                self._open(path)

    def add_missing(
        self,
        examples: Iterable[Example],
        encoder: EncoderNetwork,
        tick: Callable[[int, int], None] = lambda done, total: None,
        stop: Callable[[], bool] = lambda: False,
    ) -> Encoded:
        """Encode every sequence that the store lacks, each on its own, so that states depend on nothing beside it.

        tick: told how many of how many are done; stop: asked after each, what is computed by then is kept.
        """
        wanted = {address(example.ids): example.ids for example in examples}
        missing = [key for key in wanted if key not in self._file_of]
        waiting: dict[str, Tensor] = {}
        done = size = 0
        with torch.no_grad():
            while done < len(missing) and not stop():
                ids = torch.from_numpy(wanted[missing[done]].astype(np.int64))[None]
                states = encoder(ids, torch.ones_like(ids, dtype=torch.bool))[0].float().contiguous()
                waiting[missing[done]] = states
                size += states.nbytes
                if size >= _SHARD_BYTES:
                    self._add(waiting)
                    waiting, size = {}, 0
                done += 1
                tick(done, len(missing))
        if waiting:
            self._add(waiting)
        return Encoded(len(wanted) - len(missing), done, self.dropped, done < len(missing))

    def states(self, examples: Sequence[Example]) -> Tensor:
        """(N, L, d), zeros on padding."""
        found = [self._file_of[key].get_tensor(key) for key in (address(example.ids) for example in examples)]
        return torch.nn.utils.rnn.pad_sequence(found, batch_first=True)

    def _add(self, states: dict[str, Tensor]) -> None:
        data = save(states, {"format": FORMAT})
        path = self.folder / f"{hashlib.sha256(data).hexdigest()}.safetensors"
        with replacing(path) as temporary:
            temporary.write_bytes(data)
        self._open(path)

    def _open(self, path: Path) -> None:
        """Take a file in, or remove one whose bytes are not those it is called by."""
        try:
            if file_sha256(path) == path.stem:
                file = safe_open(path, framework="pt")
                self._file_of |= dict.fromkeys(file.keys(), file)  # type: ignore[no-untyped-call]
                return
        except (InputError, OSError, SafetensorError):
            pass
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise OutputError(f"is damaged and cannot be removed: {error.strerror}", where=str(path)) from None
        self.dropped.append(path.name)


def address(ids: Any) -> str:
    """Of a sequence of int32 token ids."""
    return hashlib.sha256(ids.tobytes()).hexdigest()


def trunk_identity(encoder: EncoderNetwork) -> dict[str, Any]:
    """What hidden states depend on: the encoder's shape and weights, and the torch that computes them."""
    digest = hashlib.sha256()
    for name, parameter in sorted(encoder.named_parameters()):
        digest.update(f"{name} {tuple(parameter.shape)}\n".encode())
        digest.update(parameter.detach().float().contiguous().numpy().tobytes())
    return {"shape": asdict(encoder.shape), "weights": digest.hexdigest(), "torch": torch.__version__}
