"""The samples of the untrained student, drawn before the first step: whether the teacher finds them probable enough to teach it."""

import math
from collections.abc import Mapping

from training.config.run_config import RunConfig

_LEAST_LOGPROB = -3.0  # of a token: a probability of 5%
_MANY_CUT_OFF = 0.9  # of the samples
FIX = "First train the model on answers of the teacher, or on expected answers (task sft); some steps suffice."


def note(values: Mapping[str, float], prompts: int) -> str:
    """What the samples to so many prompts tell; `values` are their means by the names of the metrics."""
    return (
        f"The teacher gives the tokens of the untrained model's samples a mean log-probability of {values['teacher_logprob']:.3g} "
        f"(a probability of {math.exp(values['teacher_logprob']):.1%}). Of the samples to {prompts:,} prompts, "
        f"{values['cut_off']:.0%} are cut off; their mean length is {values['completion_length']:.3g} tokens."
    )


def warnings(values: Mapping[str, float], config: RunConfig) -> list[str]:
    """Why the teacher can teach the model little, each with the fix.

    What a teacher says of texts that it would never write does not help (docs/distillation.md has figures).
    """
    sentences = []
    if values["teacher_logprob"] < _LEAST_LOGPROB:
        sentences.append(
            f"The teacher finds the samples of the untrained model improbable (log-probability of a token "
            f"{values['teacher_logprob']:.3g}, below {_LEAST_LOGPROB:g}), so that it can teach little about them. {FIX}"
        )
    if values["cut_off"] >= _MANY_CUT_OFF:
        longest = config.max_completion_length
        sentences.append(
            f"{values['cut_off']:.0%} of the untrained model's samples are cut off after {longest:,} tokens. If the teacher's "
            f"answers are longer, raise max_completion_length. If not: {FIX[0].lower()}{FIX[1:]}"
        )
    return sentences
