"""`python -m training.results.reward_scores`: scores answers to rows of a data file by reward models, on CPU.

Standard input has {"path", "columns", "name", "answers": {number of a row from 0: text}, "rewards": [entries of a JSON list]}. It
prints {"scores": {reward: [scores in the order of the answers]}, "troubles": {reward: [failed, sentence, kind]}}.
"""

import json
from dataclasses import astuple
from typing import Any

import torch

from training.config.choices import Precision
from training.config.run_config import RunConfig
from training.config.task import Task
from training.errors import answer_json
from training.models.reward_model import load_scorers, scores_of
from training.rewards.rewards import reward_of
from training.rewards.sample_rows import wanted_rows

_ROWS = 8  # at once


def scores(text: str) -> dict[str, Any]:
    """The scores that a request asks for. Raises UserError if a model cannot be loaded, or a row cannot be read."""
    asked = json.loads(text)
    answers = {int(number): answer for number, answer in asked["answers"].items()}
    examples = {number: example for number, _, example in wanted_rows(asked, answers)}
    rewards = [reward_of(document) for document in asked["rewards"]]
    config = RunConfig(model="-", data="-", task=Task.REWARD)
    scorers = load_scorers(rewards, config, Precision.FP32, torch.device("cpu"), _ROWS)
    found = scores_of(scorers, [examples[number] for number in answers], list(answers.values()))
    return {
        "scores": {name: values for name, (values, _) in found.items()},
        "troubles": {name: astuple(trouble) for name, (_, trouble) in found.items() if trouble},
    }


if __name__ == "__main__":
    answer_json(scores)
