"""Stored weights become float32 without a changed value."""

from __future__ import annotations

import numpy as np
import pytest

from layactl.core.weights import bfloat16_to_float32, float16_to_float32

ALL_BITS = np.arange(2**16, dtype=np.uint16)


@pytest.mark.filterwarnings("error")
def test_every_float16_keeps_its_value_also_from_a_read_only_mapping() -> None:
    stored = np.frombuffer(ALL_BITS.tobytes(), dtype=np.float16)
    assert not stored.flags.writeable
    wide = float16_to_float32(stored)
    assert wide.dtype == np.float32
    assert wide.flags.writeable
    np.testing.assert_array_equal(wide, stored.astype(np.float32))
    assert np.array_equal(np.signbit(wide), np.signbit(stored))


@pytest.mark.parametrize("error", [BufferError, TypeError])
def test_a_torch_that_takes_no_read_only_array_changes_nothing(error: type[Exception], monkeypatch: pytest.MonkeyPatch):
    def refuse(values: object) -> None:
        raise error("Cannot export readonly array")

    monkeypatch.setattr("torch.utils.dlpack.from_dlpack", refuse)
    test_every_float16_keeps_its_value_also_from_a_read_only_mapping()


def test_every_bfloat16_is_the_upper_half_of_its_float32() -> None:
    wide = bfloat16_to_float32(ALL_BITS)
    assert np.array_equal(wide.view(np.uint32) >> 16, ALL_BITS)
    assert not (wide.view(np.uint32) & 0xFFFF).any()
