"""Rewards of static/starter/rewards.yaml."""

import json


def city(prompt, answer, expected):  # noqa: ARG001
    """1 if the answer is the city of the order, and nothing else."""
    return answer == json.loads(expected)["city"]
