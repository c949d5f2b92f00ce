"""Numbers that papers print, and golden ones that the libraries print today as they did."""

from __future__ import annotations

from typing import Any

import make_calib_golden
import numpy as np
import pytest

from layactl.calib.curves import wilson
from layactl.calib.statistic import Auc
from layactl.calib.threshold import Risk, certify
from layactl.reporting.act_gate import GateRule
from tests.calib.golden import GOLDEN

# Newcombe, Statistics in Medicine 17 (1998), table I: 95 % intervals of a proportion by the score method and by
# Clopper and Pearson's exact one.
NEWCOMBE = [
    (81, 263, (0.2553, 0.3662), (0.2527, 0.3676)),
    (15, 148, (0.0624, 0.1605), (0.0578, 0.1617)),
    (0, 20, (0.0000, 0.1611), (0.0000, 0.1684)),
    (1, 29, (0.0061, 0.1718), (0.0009, 0.1776)),
]


@pytest.mark.parametrize(("events", "count", "score", "exact"), NEWCOMBE)
def test_intervals_of_a_share_are_newcombes(events: int, count: int, score: Any, exact: Any):
    assert wilson(events / count, count) == pytest.approx(score, abs=5e-5)
    # The bound of a certificate is the upper limit alone, of half the level.
    right = np.array([0.0] * events + [1.0] * (count - events))
    found = certify(np.full(count, 0.9), right, Risk(0.5, 0.025, 1), GateRule(None), clusters=count)
    assert found.upper == pytest.approx(exact[1], abs=5e-5)


def test_the_area_under_the_curve_of_hanley_and_mcneil():
    """Radiology 143 (1982), table I: 109 images rated 1 to 5 by how surely they are abnormal; W = 0.893."""
    normal, abnormal = (33, 6, 6, 11, 2), (3, 2, 2, 11, 33)
    score = np.repeat(np.tile(np.arange(1.0, 6.0), 2), [*normal, *abnormal])
    event = np.repeat([0.0, 1.0], [sum(normal), sum(abnormal)])
    area = Auc(score, event, np.zeros(len(score), np.int64), 1)(np.ones((1, 1)))[0]
    assert area == pytest.approx(0.893, abs=5e-4)


def test_the_golden_file_is_what_the_libraries_say_now():
    def compare(found: Any, kept: Any) -> None:
        if isinstance(kept, dict):
            assert found.keys() == kept.keys()
            for key in kept:
                compare(found[key], kept[key])
        elif isinstance(kept, list):
            assert len(found) == len(kept)
            for one, other in zip(found, kept, strict=True):
                compare(one, other)
        else:
            assert found == pytest.approx(kept, rel=1e-9, abs=1e-12)

    compare(make_calib_golden.golden(), GOLDEN)
