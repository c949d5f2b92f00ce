"""The weights of a checkpoint, from one file or from shards, matched against the tensors its shape demands."""

from __future__ import annotations

from pathlib import Path

from layactl.checkpoint.json_files import parse_json_object, read_bytes
from layactl.checkpoint.safetensors_file import StoredTensor, read_safetensors
from layactl.core.model_shape import ModelShape
from layactl.core.tensor_table import UNUSED_TENSORS, tensor_specs
from layactl.errors import CheckpointError

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"


def read_weights(root: Path, shape: ModelShape) -> dict[str, StoredTensor]:
    """Every tensor of the model by its checkpoint name, nothing missing, nothing unknown.

    Raises CheckpointError naming the tensor or the file.
    """
    index = root / INDEX
    stored = _read_sharded(root, index) if index.exists() else read_safetensors(root / SINGLE)
    where = str(index if index.exists() else root / SINGLE)
    wanted: dict[str, StoredTensor] = {}
    for spec in tensor_specs(shape):
        if spec.checkpoint not in stored:
            raise CheckpointError(f"tensor {spec.checkpoint} is missing", where=where)
        _check_shape(stored[spec.checkpoint], spec.shape)
        wanted[spec.checkpoint] = stored[spec.checkpoint]
    for name, tensor in stored.items():
        if name in UNUSED_TENSORS:
            _check_shape(tensor, UNUSED_TENSORS[name])
        elif name not in wanted:
            raise CheckpointError(f"tensor {name} has no place in this model", where=str(tensor.path))
    return wanted


def _check_shape(tensor: StoredTensor, shape: tuple[int, ...]) -> None:
    if tensor.shape != shape:
        raise CheckpointError(f"tensor {tensor.name} has shape {tensor.shape}, not {shape}", where=str(tensor.path))


def _read_sharded(root: Path, index: Path) -> dict[str, StoredTensor]:
    weight_map = parse_json_object(index, read_bytes(index)).object("weight_map")
    files: dict[str, list[str]] = {}
    for name in weight_map.values:
        files.setdefault(weight_map.text(name), []).append(name)
    if (root / SINGLE).exists() and SINGLE not in files:
        raise CheckpointError(f"{SINGLE} stands beside an index that names other files", where=str(index))
    stored: dict[str, StoredTensor] = {}
    for file_name, names in files.items():
        if not file_name.endswith(".safetensors") or Path(file_name).name != file_name:
            raise CheckpointError(f"weight_map names {file_name!r:.80}, not a shard beside it", where=str(index))
        shard = read_safetensors(root / file_name)
        if missing := sorted(set(names) - set(shard)):
            raise CheckpointError(
                f"{file_name} does not hold {missing[0]}, which the index puts there", where=str(index)
            )
        if extra := sorted(set(shard) - set(names)):
            raise CheckpointError(f"{file_name} holds {extra[0]}, which the index does not put there", where=str(index))
        stored |= shard
    return stored
