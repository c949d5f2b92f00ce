"""core.calibration: which temperature a question gets, and the arithmetic from logits to probabilities."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from layactl.core.calibration import (
    Calibration,
    entropy_confidence,
    find_bucket,
    reference_calibration,
    softmax,
)

TYPES = ("choice", "score", "noul")

# (buckets in file order, option count, bucket found)
BUCKETS = {
    "exact": (["2", "3"], 3, "3"),
    "exact beats a range": (["1-5", "3", "3+", "*"], 3, "3"),
    "exact beats a range written first": (["*", "3+", "1-5", "3"], 3, "3"),
    "range": (["3-5"], 4, "3-5"),
    "range holds its lower end": (["3-5"], 3, "3-5"),
    "range holds its upper end": (["3-5"], 5, "3-5"),
    "below a range": (["3-5"], 2, None),
    "above a range": (["3-5"], 6, None),
    "range beats open end and star": (["*", "2+", "3-5"], 4, "3-5"),
    "first of two ranges": (["2-9", "3-5"], 4, "2-9"),
    "numbers compare as numbers": (["3-5", "6-10"], 10, "6-10"),
    "open end": (["11+"], 20, "11+"),
    "open end holds its own count": (["11+"], 11, "11+"),
    "below an open end": (["11+"], 10, None),
    "open end beats star": (["*", "2+"], 4, "2+"),
    "the highest open end that fits": (["2+", "9+", "11+"], 10, "9+"),
    "star": (["*"], 7, "*"),
    "star after nothing fits": (["2", "3-5", "11+", "*"], 7, "*"),
    "1 is not 11": (["1"], 11, None),
    "none": ([], 2, None),
}


@pytest.mark.parametrize("name", BUCKETS)
def test_bucket_lookup(name: str):
    buckets, options, found = BUCKETS[name]
    assert find_bucket(dict.fromkeys(buckets, 1.5), options) == found


CLAMPED = {
    "inside": (1.37, 1.37),
    "lower end": (0.5, 0.5),
    "upper end": (5.0, 5.0),
    "too small": (0.1006, 0.5),
    "too large": (7.0, 5.0),
    "zero": (0.0, 0.5),
    "negative": (-3.0, 0.5),
}


@pytest.mark.parametrize("name", CLAMPED)
def test_a_temperature_found_is_clamped(name: str):
    stored, applied = CLAMPED[name]
    calibration = Calibration("v", {"noul": {"*": stored}})
    assert calibration.temperature_for("noul", 2) == applied
    warnings = calibration.warnings()
    assert len(warnings) == (stored != applied)
    for text in warnings:
        assert f"temperature {stored:g} of noul" in text
        assert f"outside [0.5, 5]; {applied:g} is used" in text


NARROW = Calibration("v", {"choice": {"3-5": 4.0}, "all": {"2": 2.5, "*": 9.0}}, clamp=(2.0, 3.0))
LOOKUPS = {
    "type entry": ("choice", 4, 3.0),
    "a type entry without a bucket does not fall back to all": ("choice", 2, 1.0),
    "all": ("score", 2, 2.5),
    "star of all": ("noul", 7, 3.0),
}


@pytest.mark.parametrize("name", LOOKUPS)
def test_the_type_entry_comes_before_all_and_nothing_found_is_exactly_1(name: str):
    question_type, options, temperature = LOOKUPS[name]
    # 1.0 lies outside this clamp, so a clamped default would show.
    assert NARROW.temperature_for(question_type, options) == temperature


def test_without_entries_the_temperature_is_exactly_1():
    calibration = Calibration("v", {"choice": {"*": 2.0}}, clamp=(2.0, 3.0))
    assert calibration.temperature_for("noul", 2) == 1.0


# -- what a checkpoint ships -----------------------------------------------------------------------------------------


def test_all_ones_and_no_bucket_is_uncalibrated():
    calibration = reference_calibration([1.0, 1.0, 1.0], {}, TYPES, "v")
    assert (calibration.version, calibration.calibrated, calibration.temperature) == ("none", False, {})


@pytest.mark.parametrize(("temperatures", "buckets"), [([1.0, 1.0, 1.1], {}), ([1.0, 1.0, 1.0], {"noul:2": 1.0})])
def test_one_temperature_or_one_bucket_makes_a_model_calibrated(temperatures: list[float], buckets: dict[str, float]):
    calibration = reference_calibration(temperatures, buckets, TYPES, "v")
    assert (calibration.version, calibration.calibrated) == ("v", True)


def test_the_reference_bucket_2_holds_one_option_too():
    calibration = reference_calibration([3.0, 1.0, 1.0], {"choice:2": 2.0}, TYPES, "v")
    assert [calibration.temperature_for("choice", k) for k in (1, 2, 3)] == [2.0, 2.0, 3.0]


def test_names_the_reference_never_looks_up_are_left_out():
    buckets = {"choice:7": 2.0, "choice": 2.0, "mood:2": 2.0, "choice:3-5": 2.0}
    calibration = reference_calibration([1.0, 1.0, 1.0], buckets, TYPES, "v")
    assert calibration.temperature == {"choice": {"3-5": 2.0, "*": 1.0}, "score": {"*": 1.0}, "noul": {"*": 1.0}}


SHIPPED = st.sampled_from([0.1006, 0.5, 0.93, 1.0, 1.76, 5.0, 7.5, -1.0, 0.0])
NAMES = [f"{t}:{size}" for t in TYPES for size in ("2", "3-5", "6-10", "11+")]


@pytest.mark.reference
@given(st.lists(SHIPPED, min_size=3, max_size=3), st.dictionaries(st.sampled_from(NAMES), SHIPPED))
def test_every_temperature_is_the_one_the_reference_applies(temperatures: list[float], buckets: dict[str, float]):
    common = pytest.importorskip("laya.common")
    calibration = reference_calibration(temperatures, buckets, TYPES, "v")
    for (type_id, question_type), options in itertools.product(enumerate(TYPES), range(1, 21)):
        shipped = buckets.get(common.temp_bucket(type_id, options), temperatures[type_id])
        assert calibration.temperature_for(question_type, options) == common.clamp_temperature(shipped)


# -- logits to probabilities -----------------------------------------------------------------------------------------

LOGITS = st.lists(st.floats(-300, 300), min_size=1, max_size=20)
TEMPERATURES = st.floats(0.5, 5.0)


def numpy_softmax(logits: Sequence[float], temperature: float) -> np.ndarray:
    z = np.array(logits, dtype=np.float64) / temperature
    exps = np.exp(z - z.max())
    return exps / exps.sum()


@given(LOGITS, TEMPERATURES)
def test_softmax_equals_numpy_in_double(logits: list[float], temperature: float):
    p = softmax(logits, temperature)
    np.testing.assert_allclose(p, numpy_softmax(logits, temperature), rtol=1e-12, atol=1e-300)
    assert math.fsum(p) == pytest.approx(1.0, abs=1e-15)


@given(LOGITS, TEMPERATURES)
def test_confidence_equals_numpy_in_double(logits: list[float], temperature: float):
    p = softmax(logits, temperature)
    expected = 1.0
    if len(p) > 1:
        q = np.array(p)
        expected = float(np.clip(1 + (q * np.log(np.clip(q, 1e-12, 1))).sum() / math.log(len(p)), 0, 1))
    assert entropy_confidence(p) == pytest.approx(expected, abs=1e-12)
    assert 0.0 <= entropy_confidence(p) <= 1.0


@pytest.mark.reference
@given(LOGITS, TEMPERATURES)
def test_confidence_equals_the_reference(logits: list[float], temperature: float):
    common = pytest.importorskip("laya.common")
    p = softmax(logits, temperature)
    expected = common.confidence_from_probs(np.array(p), len(p))
    assert entropy_confidence(p) == pytest.approx(expected, abs=1e-12)


EXTREMES = {
    "one option": ([123.4], 1.0, [1.0], 1.0),
    "equal logits": ([2.0, 2.0], 1.0, [0.5, 0.5], 0.0),
    "no overflow": ([3e38, 0.0], 0.5, [1.0, 0.0], 1.0),
    "far below": ([-3e38, -3e38], 5.0, [0.5, 0.5], 0.0),
}


@pytest.mark.parametrize("name", EXTREMES)
def test_extreme_logits(name: str):
    logits, temperature, probabilities, confidence = EXTREMES[name]
    p = softmax(logits, temperature)
    assert p == probabilities
    assert entropy_confidence(p) == pytest.approx(confidence, abs=1e-12)
