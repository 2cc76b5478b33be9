"""The divergence between the probabilities that a teacher and a student give to the next token (Agarwal et al. 2024, section 3)."""

import math
from typing import NamedTuple

import torch
from torch.utils.checkpoint import checkpoint

_PART_TOKENS = 256  # whose logits are in fp32 at once


class TokenMeasures(NamedTuple):
    """Values of each token, of shape (tokens,): the divergence, the entropy of the student, and the log-probability that the
    teacher gives to the token that was drawn. Only the divergence has a gradient."""

    divergence: torch.Tensor
    entropy: torch.Tensor
    teacher_logprob: torch.Tensor


def token_measures(
    student: torch.Tensor, teacher: torch.Tensor, drawn: torch.Tensor, coefficient: float, temperature: float
) -> TokenMeasures:
    """Returns the measures of each token.

    `student` and `teacher` are logits of (tokens, vocabulary); the smaller vocabulary is compared. `drawn` are the tokens of shape
    (tokens,). The logits are converted to fp32 in parts, which the backward pass computes again.
    """
    parts = [
        checkpoint(_measures, *part, coefficient, temperature, use_reentrant=False)
        for part in zip(*(torch.split(tensor, _PART_TOKENS) for tensor in (student, teacher, drawn)), strict=True)
    ]
    return TokenMeasures(*(torch.cat(values) for values in zip(*parts, strict=True)))


def divergence(student: torch.Tensor, teacher: torch.Tensor, coefficient: float) -> torch.Tensor:
    """Returns the divergence of log-probabilities of (..., vocabulary), of shape (...), in nats.

    With p of the teacher and q of the student, it is KL(p || q) at `coefficient` b = 0, KL(q || p) at 1, and between them
    b KL(p || m) + (1 - b) KL(q || m) with m = b p + (1 - b) q.
    """
    if coefficient == 0:
        return _kl(teacher, student)
    if coefficient == 1:
        return _kl(student, teacher)
    mixture = torch.logaddexp(teacher + math.log(coefficient), student + math.log1p(-coefficient))
    return coefficient * _kl(teacher, mixture) + (1 - coefficient) * _kl(student, mixture)


def _kl(of: torch.Tensor, from_: torch.Tensor) -> torch.Tensor:
    return (of.exp() * (of - from_)).sum(dim=-1)


def _measures(
    student: torch.Tensor, teacher: torch.Tensor, drawn: torch.Tensor, coefficient: float, temperature: float
) -> TokenMeasures:
    shared = min(student.shape[-1], teacher.shape[-1])
    own, other = ((logits[..., :shared].float() / temperature).log_softmax(dim=-1) for logits in (student, teacher))
    with torch.no_grad():
        entropy = -(own.exp() * own).sum(dim=-1)
        teacher_logprob = other.gather(-1, drawn[:, None]).squeeze(-1)
    return TokenMeasures(divergence(own, other, coefficient), entropy, teacher_logprob)
