"""The names of metrics: in the logs of transformers' and trl's trainers, and in Lathe's records."""

from collections.abc import Mapping

# Evaluations prefix both names with eval_.
_METRICS = {
    "loss": "loss",
    "accuracy": "accuracy",
    "margin": "margin",
    "rewards/accuracies": "accuracy",
    "rewards/margins": "margin",
    "rewards/chosen": "reward_chosen",
    "rewards/rejected": "reward_rejected",
    "kl": "kl",
}
_LOGGED = (
    {"learning_rate": "learning_rate", "grad_norm": "grad_norm", "eval_perplexity": "eval_perplexity"}
    | _METRICS
    | {f"eval_{name}": f"eval_{metric}" for name, metric in _METRICS.items()}
)


def recorded(logs: Mapping[str, float]) -> dict[str, float | None]:
    """Returns the metrics in a trainer's log under the names in which Lathe records them."""
    return {metric: float(logs[name]) for name, metric in _LOGGED.items() if name in logs}
