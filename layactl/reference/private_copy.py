"""A checkpoint folder copied for a reader that writes into what it reads.

The reference rewrites tokenizer_config.json where it stands and knows neither shards nor read-only folders. It gets the
few small files it needs as copies, and the weights as a link.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from layactl.checkpoint.folder import AGENT_CONFIG, ENCODER_CONFIG, MAX_TOKENIZER_BYTES
from layactl.checkpoint.json_files import parse_json_object, read_bytes
from layactl.checkpoint.safetensors_file import StoredTensor, read_safetensors
from layactl.checkpoint.weights import INDEX, SINGLE
from layactl.durable import check_regular
from layactl.errors import CheckpointError, OutputError
from layactl.sigterm import unwound_on_sigterm

_TOKENIZER = "tokenizer"
_SLICE_BYTES = 4 * 2**20
_ITEM_BYTES = {"F32": 4, "F16": 2, "BF16": 2}
_PREFIX, _LOCK = "layactl-reference-", "lock"
# Between the making of a folder and its lock.
_SECONDS_TO_LOCK = 60


@contextmanager
def scratch_folder(checkpoint: Path) -> Iterator[Path]:
    """A temporary folder for copies of `checkpoint`, gone at the end, after SIGTERM too.

    What a killed process left is removed first. Raises OutputError when temporary files would go into the checkpoint.
    """
    # Asked for itself first: Python writes into the temporary folder to try it.
    if wanted := next(filter(None, map(os.environ.get, ("TMPDIR", "TEMP", "TMP"))), None):
        _refuse_inside(checkpoint, Path(wanted))
    place = Path(tempfile.gettempdir())
    _refuse_inside(checkpoint, place)
    _remove_leftovers(place)
    with unwound_on_sigterm():
        with _writing(place):
            scratch = tempfile.TemporaryDirectory(prefix=_PREFIX, dir=place, ignore_cleanup_errors=True)
        with scratch as folder, (Path(folder) / _LOCK).open("xb") as lock:
            _try_lock(lock.fileno())
            yield Path(folder)


def _refuse_inside(checkpoint: Path, place: Path) -> None:
    if place.resolve().is_relative_to(checkpoint.resolve()):
        raise OutputError("is inside the checkpoint, which is never written to", where=str(place))


def _remove_leftovers(place: Path) -> None:
    """Remove scratch folders of ours whose process no longer holds their lock, being dead."""
    for folder in place.glob(f"{_PREFIX}*"):
        # What is gone already, or has no lock to tell by, stays as it is.
        with suppress(OSError):
            status = folder.lstat()
            ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
            if ours and time.time() - status.st_mtime > _SECONDS_TO_LOCK and _is_abandoned(folder / _LOCK):
                shutil.rmtree(folder, ignore_errors=True)


def _is_abandoned(lock: Path) -> bool:
    descriptor = os.open(lock, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        return _try_lock(descriptor)
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    """Whether nobody else holds it; where there are no such locks nobody is known not to."""
    try:
        import fcntl
    except ImportError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def private_copy(checkpoint: Path, scratch: Path) -> Path:
    """A new folder inside `scratch` that a reader may write to, with all that makes the model of `checkpoint`.

    Copied: rl_agent_config.json, encoder/config.json and the files directly in tokenizer/. model.safetensors is a link
    to the file itself; shards are merged into one file, tensor bytes and types as they are.
    Raises CheckpointError naming the file that is missing or not understood, OutputError when the copy cannot be made.
    """
    _refuse_inside(checkpoint, scratch)
    with _writing(scratch):
        copy = Path(tempfile.mkdtemp(prefix=f"{checkpoint.resolve().name[:50]}.", dir=scratch))
    for name in (AGENT_CONFIG, ENCODER_CONFIG, *_tokenizer_files(checkpoint)):
        data = read_bytes(checkpoint / name, MAX_TOKENIZER_BYTES)
        with _writing(copy / name):
            # New files and folders in place of copied ones: what came from a read-only folder must not stay so.
            (copy / name).parent.mkdir(exist_ok=True)
            (copy / name).write_bytes(data)
    shards = _shards(checkpoint)
    if shards == {SINGLE}:
        _link(checkpoint / SINGLE, copy / SINGLE)
    else:
        _merge([checkpoint / name for name in sorted(shards)], copy / SINGLE)
    return copy


def _tokenizer_files(checkpoint: Path) -> list[str]:
    """What lies directly in tokenizer/; folders below it are no part of the model."""
    try:
        entries = sorted((checkpoint / _TOKENIZER).iterdir())
    except OSError as error:
        raise CheckpointError(f"tokenizer cannot be read: {error.strerror}", where=str(checkpoint)) from None
    return [f"{_TOKENIZER}/{entry.name}" for entry in entries if not entry.is_dir()]


def _shards(checkpoint: Path) -> set[str]:
    """Names of the weight files."""
    index = checkpoint / INDEX
    if not index.exists():
        return {SINGLE}
    weight_map = parse_json_object(index, read_bytes(index)).object("weight_map")
    names = {weight_map.text(tensor) for tensor in weight_map.values}
    for name in names:
        if Path(name).name != name:
            raise CheckpointError(f"weight_map names {name!r:.80}, not a shard beside it", where=str(index))
    return names


def _link(weights: Path, target: Path) -> None:
    check_regular(weights, CheckpointError)
    if not weights.exists():
        raise CheckpointError(f"{weights.name} is missing", where=str(weights))
    with _writing(target):
        target.symlink_to(weights.resolve())


def _merge(shards: list[Path], target: Path) -> None:
    """Write the tensors of all shards into one safetensors file, a slice at a time."""
    tensors: dict[str, StoredTensor] = {}
    for shard in shards:
        found = read_safetensors(shard)
        if twice := sorted(set(found) & set(tensors)):
            raise CheckpointError(f"tensor {twice[0]} is in an earlier shard too", where=str(shard))
        tensors |= found
    # The widest types first, as the safetensors package writes them, so that every tensor is aligned.
    ordered = sorted(tensors.values(), key=lambda tensor: (-_ITEM_BYTES[tensor.dtype], tensor.name))
    header, end = {}, 0
    for tensor in ordered:
        start, end = end, end + tensor.range.nbytes
        header[tensor.name] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with _writing(target), target.open("xb") as handle:
        handle.write(len(text).to_bytes(8, "little") + text)
        for tensor in ordered:
            start, left = tensor.offset, tensor.range.nbytes
            while left:
                # Read and written in turn: CheckpointError for the one, OSError for the other.
                data = tensor.file.read(start, min(left, _SLICE_BYTES))
                handle.write(data)
                start, left = start + len(data), left - len(data)


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OutputError(f"cannot be written: {error.strerror}", where=str(path)) from error
