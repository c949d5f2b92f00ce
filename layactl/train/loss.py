"""What training minimises: soft cross-entropy, and the reference's policy gradient over proper scoring rewards."""

from __future__ import annotations

import torch
from torch import Tensor

from layactl.layouts.laya.question import QUESTION_TYPES
from layactl.train.network import NO_OPTION
from layactl.train.settings import RlcdSettings

_SCORE = QUESTION_TYPES.index("score")
# As the reference floors the log of a reported probability.
_LOG_FLOOR = -9.21


def soft_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """-sum_k t_k ln softmax(z)_k of each answer, (N,). logits, targets: (N, K), padded with NO_OPTION and 0."""
    return -(targets * torch.log_softmax(logits, -1)).sum(-1)


def proper_reward(
    reports: Tensor, targets: Tensor, type_ids: Tensor, options: Tensor, *, spherical: float = 0.5, ranked: float = 1.0
) -> Tensor:
    """Reward of reported distributions (..., N, K) against targets (N, K): log score + spherical score, and for score
    questions minus the ranked probability score (reference `common.proper_reward`).
    """
    reports = reports * options
    log_score = (targets * torch.log(reports.clamp_min(1e-12)).clamp_min(_LOG_FLOOR)).sum(-1)
    reward = log_score + spherical * (targets * reports).sum(-1) / reports.norm(dim=-1).clamp_min(1e-9)
    steps = (torch.cumsum(reports, -1) - torch.cumsum(targets, -1)) ** 2 * options
    levels = options.sum(-1).clamp(min=2).to(reports.dtype)
    out: Tensor = reward - ranked * steps.sum(-1) / (levels - 1) * (type_ids == _SCORE)
    return out


def policy_loss(
    logits: Tensor, targets: Tensor, type_ids: Tensor, options: Tensor, sigma: float, settings: RlcdSettings
) -> Tensor:
    """The policy gradient of each answer, (N,): -mean_g A_g ln N(z + e_g; z, sigma^2).

    e_g is Gaussian noise that sums to zero over an answer's options (a shift of all logits reports nothing new); A_g is
    the reward of softmax(z + e_g) less the mean over the answer's samples, in units of the standard deviation over the
    batch. Only the density has a gradient. Draws from torch's global generator.
    """
    count = options.sum(-1, keepdim=True)
    noise = torch.randn((settings.samples, *logits.shape), dtype=logits.dtype, device=logits.device) * sigma * options
    noise = (noise - noise.sum(-1, keepdim=True) / count) * options
    sampled = logits.detach() + noise  # (G, N, K)
    with torch.no_grad():
        reports = torch.softmax(sampled.masked_fill(~options, NO_OPTION), -1)
        reward = proper_reward(
            reports, targets, type_ids, options, spherical=settings.spherical, ranked=settings.ranked
        )
        advantage = reward - reward.mean(0, keepdim=True)
        advantage = advantage / (advantage.std() + 1e-6)
    log_density = -((sampled - logits) ** 2 * options).sum(-1) / (2 * sigma**2)
    return -(advantage * log_density).mean(0)


def act_loss(act_logits: Tensor, logits: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy of the act head with "the answer is right", (N,): class 0 acts, class 1 leaves it to somebody else.

    How right an answer is, is what its most probable option has of the target.
    """
    right = targets.gather(-1, logits.detach().argmax(-1, keepdim=True))  # (N, 1)
    return soft_cross_entropy(act_logits, torch.cat([right, 1 - right], dim=-1))
