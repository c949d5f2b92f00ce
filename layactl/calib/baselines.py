"""What simple rules achieve on the same data and split: a model that one of them beats is not worth its passes."""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from layactl import __version__
from layactl.calib.bootstrap import Bootstrap, Estimate, estimate
from layactl.calib.calibrator import Calibrator, recorded
from layactl.calib.card_features import CardFeatures, log_odds, pass_rate
from layactl.calib.evaluation import Selection, check_selection
from layactl.calib.extra import scientific
from layactl.calib.fit import METRICS, cluster_numbers, fit_scores
from layactl.calib.judged import Judged, judge_answers, judge_scores, statistics_of
from layactl.calib.logits import LabelledAnswer, LabelledScore, LogitsFile
from layactl.calib.platt import PlattFit, fit_platt
from layactl.calib.statistic import Difference
from layactl.core.calibration import platt
from layactl.errors import InputError, UsageError
from layactl.labelled.outcomes import KIND as ROUTER
from layactl.labelled.split import EVAL, FIT

BASELINES_FORMAT = "layactl.calib-baselines/1"

BASE_RATE, PASS_RATE, PASS_RATE_PLATT, LOGREG = "base-rate", "pass-rate", "pass-rate-platt", "logreg"
ENGINE_RAW, ENGINE_PLATT, ENGINE = "engine-raw", "engine-platt", "engine"
UNIFORM, PRIOR = "uniform", "prior"
_OF_THE_ENGINE = (ENGINE_RAW, ENGINE_PLATT, ENGINE)

DESCRIPTIONS = {
    BASE_RATE: "the success rate of the fit split, for every candidate",
    PASS_RATE: "(passed + 1) / (total + 2) of the card, no fit",
    PASS_RATE_PLATT: "a sigmoid fitted to the log odds of the card's pass rate",
    LOGREG: "L2 logistic regression on the card's numbers and kind",
    ENGINE_RAW: "sigmoid of the raw logit",
    ENGINE_PLATT: "a sigmoid fitted to the raw logit (that of --fit, if given)",
    UNIFORM: "the same probability for every option",
    PRIOR: "how often each option of the question is gold in the fit split, plus one each",
    ENGINE: "the model, calibrated as recorded (by --fit, if given)",
}


@dataclass(frozen=True)
class Baseline:
    """One rule on the eval split. delta: its metrics - the reference's, over the same draws."""

    name: str
    metrics: Mapping[str, Estimate]
    delta: Mapping[str, Estimate]

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "what": DESCRIPTIONS[self.name],
            "metrics": {name: found.to_json() for name, found in self.metrics.items()},
            "delta": {name: found.to_json() for name, found in self.delta.items()},
        }


@dataclass(frozen=True)
class Baselines:
    """skipped: rules that could not be had, and why."""

    logits: LogitsFile
    reference: str
    found: Sequence[Baseline]
    skipped: Mapping[str, str]
    answers: int
    clusters: int
    bootstrap: Bootstrap

    def better(self) -> list[str]:
        """Rules without the engine that are convincingly better than the reference in NLL or Brier score."""
        return [
            baseline.name
            for baseline in self.found
            if baseline.name not in _OF_THE_ENGINE
            and any(d.excludes_zero and (d.value or 0.0) < 0 for d in (baseline.delta["nll"], baseline.delta["brier"]))
        ]

    def to_json(self) -> dict[str, Any]:
        return {
            "format": BASELINES_FORMAT,
            "layactl": __version__,
            "kind": self.logits.kind,
            "logits": {"sha256": self.logits.sha256},
            "engines": self.logits.engines,
            "split": EVAL,
            "answers": self.answers,
            "reference": self.reference,
            "better_than_reference": self.better(),
            "baselines": [baseline.to_json() for baseline in self.found],
            "skipped": dict(self.skipped),
            "bootstrap": self.bootstrap.to_json(self.clusters),
        }


def baselines(
    logits: LogitsFile, bootstrap: Bootstrap, reference: str | None = None, calibrator: Calibrator | None = None
) -> Baselines:
    """Fit the rules on the fit split and judge them on the eval split.

    reference: what the differences are taken to; default: the calibrated engine where the file has its logits;
    calibrator: what calibrates it, None: as recorded (decisions), or fitted on the fit split (router). Raises
    InputError where a split is empty or holds one outcome only, logits of two engines are mixed, or the calibrator was
    fitted on answers of the eval split; UsageError for a reference there is none of.
    """
    if calibrator is not None:
        check_selection(logits, Selection(calibrator, EVAL))
    judged, skipped = _router(logits, calibrator) if logits.kind == ROUTER else _decisions(logits, calibrator)
    if reference is None:
        reference = next(name for name in (ENGINE_PLATT, ENGINE, PASS_RATE_PLATT, BASE_RATE) if name in judged)
    if reference not in judged:
        raise UsageError(f"no baseline is called {reference:.40}", where="--reference", hint=", ".join(judged))
    base = statistics_of(judged[reference])
    clusters = judged[reference].clusters
    found = []
    for name, part in judged.items():
        own = statistics_of(part)
        wanted = {f"own {metric}": own[metric] for metric in METRICS}
        values = estimate(
            wanted | {f"delta {metric}": Difference(base[metric], own[metric]) for metric in METRICS},
            clusters,
            bootstrap,
        )
        found.append(
            Baseline(name, {m: values[f"own {m}"] for m in METRICS}, {m: values[f"delta {m}"] for m in METRICS})
        )
    return Baselines(logits, reference, found, skipped, len(judged[reference]), clusters, bootstrap)


def _router(logits: LogitsFile, calibrator: Calibrator | None) -> tuple[dict[str, Judged], dict[str, str]]:
    fitted, held_out = _both(logits, logits.scores)
    where = str(logits.path)
    rate = sum(score.outcome for score in fitted) / len(fitted)
    if rate in (0.0, 1.0):
        raise InputError("every candidate of the fit split has the same outcome", where=where)
    rates = _with_logits(held_out, [log_odds(pass_rate(score.card)) for score in held_out])
    judged = {
        BASE_RATE: judge_scores(held_out, lambda score: rate),
        PASS_RATE: judge_scores(held_out, lambda score: pass_rate(score.card)),
    }
    skipped = {}
    try:
        fit = _platt_of_rates(fitted)
        judged[PASS_RATE_PLATT] = judge_scores(rates, lambda score: platt(fit.a, fit.b, score.logit or 0.0))
    except InputError as error:
        skipped[PASS_RATE_PLATT] = f"the cards' pass rates: {error.message}"
    regressed = _with_logits(held_out, _logistic_regression(fitted, held_out))
    judged[LOGREG] = judge_scores(regressed, lambda score: platt(1.0, 0.0, score.logit or 0.0))
    if any(score.logit is None for score in logits.scores):
        return judged, skipped | dict.fromkeys((ENGINE_RAW, ENGINE_PLATT), "the file has no logits")
    logits.one_engine()
    found = fit_scores(fitted, where) if calibrator is None else None
    a, b = (found.a, found.b) if found else calibrator.platt if calibrator else (1.0, 0.0)
    judged[ENGINE_RAW] = judge_scores(held_out, lambda score: platt(1.0, 0.0, score.logit or 0.0))
    judged[ENGINE_PLATT] = judge_scores(held_out, lambda score: platt(a, b, score.logit or 0.0))
    return judged, skipped


def _decisions(logits: LogitsFile, calibrator: Calibrator | None) -> tuple[dict[str, Judged], dict[str, str]]:
    logits.one_engine()
    fitted, held_out = _both(logits, logits.answers)
    counts = Counter((answer.question, answer.options, answer.gold.label) for answer in fitted)

    def prior(answer: LabelledAnswer) -> list[float]:
        seen = [counts[answer.question, answer.options, label] + 1 for label in range(len(answer.options))]
        return [math.log(count / sum(seen)) for count in seen]

    now: Calibrator = calibrator or recorded(logits)
    rules = {UNIFORM: lambda answer: [0.0] * len(answer.options), PRIOR: prior}
    judged = {
        name: judge_answers([replace(a, logits=tuple(rule(a))) for a in held_out], lambda answer: 1.0)
        for name, rule in rules.items()
    }
    return judged | {ENGINE: judge_answers(held_out, now.temperature)}, {}


def _both(logits: LogitsFile, items: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """The fit split and the eval split. Raises InputError where one is empty."""
    fitted, held_out = ([item for item in items if item.split == split] for split in (FIT, EVAL))
    for split, part in ((FIT, fitted), (EVAL, held_out)):
        if not part:
            raise InputError(f"the {split} split holds no answers", where=str(logits.path))
    return fitted, held_out


def _platt_of_rates(fitted: Sequence[LabelledScore]) -> PlattFit:
    rates = [log_odds(pass_rate(score.card)) for score in fitted]
    return fit_platt(rates, [score.outcome for score in fitted], cluster_numbers(fitted))


def _logistic_regression(fitted: Sequence[LabelledScore], held_out: Sequence[LabelledScore]) -> list[float]:
    """The log odds it gives to the held-out candidates; columns are standardised on the fit split."""
    cards = [score.card for score in fitted]
    features = CardFeatures.of(cards)
    x = features.matrix(cards)
    centre, scale = x.mean(axis=0), x.std(axis=0)
    scale[scale == 0] = 1.0
    model = scientific("sklearn.linear_model").LogisticRegression(C=1.0, tol=1e-8, max_iter=10_000)
    with warnings.catch_warnings():
        # Where it stops before its tolerance, it has still found what the data says.
        warnings.simplefilter("ignore")
        model.fit((x - centre) / scale, np.array([score.outcome for score in fitted]))
    other = features.matrix([score.card for score in held_out])
    return [float(value) for value in model.decision_function((other - centre) / scale)]


def _with_logits(scores: Sequence[LabelledScore], values: Sequence[float]) -> list[LabelledScore]:
    return [replace(score, logit=value) for score, value in zip(scores, values, strict=True)]
