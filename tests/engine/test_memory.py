"""Where a model's weights are: packed once, the table of embeddings left in the file."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from layactl.engine.model import Model
from layactl.gguf_file.reader import GgufFile


@pytest.mark.parametrize("outtype", ["f32", "f16"])
def test_bytes_are_where_the_kernels_put_them(outtype: str, gguf_for: Callable[..., Path]):
    import torch

    path = gguf_for("tiny-english", outtype)
    tensors = GgufFile(path).tensors
    products = [t for name, t in tensors.items() if len(t.shape) > 1 and not name.startswith(("token_", "type_emb"))]
    weights = sum(tensor.shape[0] * tensor.shape[1] for tensor in products)
    exact, plain = (
        Model.from_gguf(GgufFile(path), name="m", kernels=name).memory() for name in ("onednn", "reference")
    )
    assert exact["packed"] == 4 * weights
    assert (plain["packed"], plain["loaded"] > 4 * weights) == (0, True)
    assert exact["mapped"] == tensors["token_embd.weight"].nbytes
    if torch.ops.mkldnn._is_mkldnn_bf16_supported():
        half = Model.from_gguf(GgufFile(path), name="m", kernels="onednn-bf16").memory()
        assert half["packed"] == 2 * weights


# Loads a model and prints its resident file pages, in kB, before and after they are read again on purpose.
SCRIPT = """
import re, sys
from pathlib import Path
import layactl
def file_pages():
    return int(re.search(r"Rss:\\s+(\\d+) kB", MAPPED.search(Path("/proc/self/smaps").read_text()).group(0)).group(1))
MAPPED = re.compile(r"\\n[0-9a-f]+-[0-9a-f]+ .*" + re.escape(sys.argv[1]) + r"\\n(?:[A-Z].*\\n)+")
model = layactl.load(sys.argv[1])
loaded = file_pages()
Path(sys.argv[1]).read_bytes()
model.forward._encode._weights._file._map[:]
print(loaded, file_pages())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_the_pages_of_packed_weights_are_given_back(tmp_path: Path):
    from checkpoint_factory import WIDE, write_checkpoint

    from layactl.convert.convert import convert

    write_checkpoint(WIDE, tmp_path / "wide")
    path = tmp_path / "wide.gguf"
    convert(tmp_path / "wide", path, outtype="f32")
    done = subprocess.run([sys.executable, "-c", SCRIPT, str(path)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    loaded, whole = map(int, done.stdout.split())
    assert loaded < whole / 2
