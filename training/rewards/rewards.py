"""Rewards: functions that score an answer, the same as metrics of evaluations and in reinforcement learning. No torch."""

import ast
import json
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from training.errors import UserError
from training.rewards.built_in import COMPARING, JUDGE, MODEL, REWARDS

if TYPE_CHECKING:  # the reward process reads no configuration
    from training.config.run_config import RunConfig
    from training.rewards.reward_model import RewardModel

OWN = re.compile(r"(?P<file>[\w.-]+\.py):(?P<function>[A-Za-z_]\w*)")
_WEIGHTED = re.compile(r"(?P<name>[^*]+?)\s*(?:\*\s*(?P<weight>[^*]+))?")
_FORMS = (
    'Write names, such as "exact_match, own.py:score*0.5", or a JSON list, such as [{"reward": "length", "most": 50}].'
)
_RESERVED = ("name", "reward", "weight")
_NUL = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")  # as JSON writes it
MOST = 20
"""Rewards of a run or an evaluation."""
MOST_WEIGHT = 1_000_000


@dataclass(frozen=True)
class Reward:
    """A reward with its weight in the total. `name` is unique among those of a run.

    `source` is a built-in name or FILE.py:FUNCTION; empty if it is the name.
    """

    name: str
    weight: float = 1.0
    options: dict[str, Any] = field(default_factory=dict)
    source: str = ""

    @property
    def kind(self) -> str:
        """A built-in name, or FILE.py:FUNCTION."""
        return self.source or self.name

    @property
    def own(self) -> tuple[str, str] | None:
        """File and function of a user's code; None for a built-in reward."""
        found = OWN.fullmatch(self.kind)
        return (found["file"], found["function"]) if found else None

    @property
    def compares(self) -> bool:
        """True if it applies only to rows with an expected answer."""
        if self.kind == JUDGE:
            from training.rewards.reward_options import judge_of

            return judge_of(self.options).compares
        return self.kind in COMPARING and not (self.kind == "contains" and self.options.get("text"))

    def document(self) -> dict[str, Any]:
        """The entry of a JSON list that `parse_rewards` reads."""
        named = {"name": self.name} if self.source else {}
        weight = {} if self.weight == 1 else {"weight": self.weight}
        return named | {"reward": self.kind} | self.options | weight


CODE_FILE = "rewards.py"
"""The file of a run's own functions."""


def rewards_of(config: "RunConfig") -> tuple[Reward, ...]:
    """The rewards of a run; a name that is not built in is a function of its `reward_code`.

    Raises:
        UserError: as `parse_rewards` and `functions_in`; or a run cannot use a reward.
    """
    own = functions_in("reward_code", CODE_FILE, config.reward_code) if config.reward_code else []
    rewards = parse_rewards(config.rewards, own)
    if files := sorted({reward.own[0] for reward in rewards if reward.own} - {CODE_FILE}):
        fix = "Put its functions into reward_code, and name them without the file."
        raise UserError("rewards", files[0], "is not sent with a run.", fix)
    return rewards


def judge_urls(text: str) -> list[str]:
    """The addresses of the judges among the rewards in a text."""
    return [judge["url"] for judge in _of_kind(text, JUDGE) if isinstance(judge.get("url"), str)]


def reward_models(text: str) -> list["RewardModel"]:
    """The reward models among the rewards in a text, as far as their options are right."""
    return [model for entry in _of_kind(text, MODEL) if (model := _model_in(entry))]


def with_reward_models(text: str, change: Callable[[str], dict[str, str] | None]) -> str:
    """The rewards in a text, where `change` says how each reward model is named instead: by `run` or `model`; None: as it is."""
    if not reward_models(text):
        return text
    entries = [
        {option: value for option, value in entry.items() if option not in ("run", "model")} | other
        if (model := _model_in(entry)) and (other := change(model.name))
        else entry
        for entry in _entries(text)
    ]
    return text if entries == _entries(text) else json.dumps(entries, ensure_ascii=False)


def _model_in(entry: Any) -> "RewardModel | None":
    from training.rewards.reward_options import reward_model_of

    if not isinstance(entry, dict) or entry.get("reward") != MODEL:
        return None
    try:
        return reward_model_of({option: value for option, value in entry.items() if option not in _RESERVED})
    except UserError:
        return None


def _of_kind(text: str, kind: str) -> list[dict[str, Any]]:
    """The entries of a kind that has options, so that the text is a JSON list; empty if it is none."""
    try:
        entries = _entries(text) if text.lstrip().startswith(("[", "{")) else []
    except UserError:
        return []
    return [entry for entry in entries if isinstance(entry, dict) and entry.get("reward") == kind]


def parse_rewards(text: str, own: Collection[str] = ()) -> tuple[Reward, ...]:
    """The rewards in a text: "exact_match, own.py:city*0.5" (a name and a weight each), or a JSON list with options.

    `own` are functions of CODE_FILE, which go by their name alone.

    Raises:
        UserError: a name, weight or option is wrong; its field is rewards.
    """
    entries = _entries(text) if text.lstrip().startswith(("[", "{")) else [_named(part) for part in text.split(",")]
    found = tuple(reward_of(entry, own) for entry in entries)
    for reward in found:
        check_options(reward)
    if not found or len(found) > MOST:
        raise UserError("rewards", text[:200], f"names {len(found)} rewards.", f"Give 1 to {MOST}. {_FORMS}")
    names = [reward.name for reward in found]
    if twice := next((name for name in names if names.count(name) > 1), None):
        fix = 'Leave one out, or give each a name of its own: {"name": "city", "reward": "regex", ...}.'
        raise UserError("rewards", twice, "is the name of two rewards.", fix)
    return found


def total(rewards: Sequence[Reward], values: Mapping[str, Sequence[float | None]]) -> list[float | None]:
    """The weighted sum of each sample's rewards, over those that apply; None if none does, or it is not finite."""
    sums: list[float | None] = []
    for row in zip(*(values[reward.name] for reward in rewards), strict=True):
        terms = [reward.weight * value for reward, value in zip(rewards, row, strict=True) if value is not None]
        sums.append(sum(terms) if terms and math.isfinite(sum(terms)) else None)
    return sums


def reward_of(entry: Any, own: Collection[str] = ()) -> Reward:
    """The reward of an entry of a JSON list; its options are not checked (see `check_options`). `own` as in `parse_rewards`.

    Raises:
        UserError: the entry has no known reward, or a wrong weight or name.
    """
    if isinstance(entry, str):
        entry = _named(entry)
    if not _can_be_stored(
        entry | {"weight": 1} if isinstance(entry, dict) else entry
    ):  # a weight has an error of its own
        fix = "Leave out NaN, Infinity, the character NUL, and single surrogates."
        raise UserError("rewards", ascii(entry)[:200], "cannot be stored.", fix)
    if not isinstance(entry, dict) or not isinstance(entry.get("reward"), str):
        raise UserError("rewards", entry, 'has no "reward".', _FORMS)
    kind, weight, name = entry["reward"], entry.get("weight", 1.0), entry.get("name", entry["reward"])
    if kind in own:
        kind = f"{CODE_FILE}:{kind}"
    if kind not in (*REWARDS, JUDGE, MODEL) and not OWN.fullmatch(kind):
        fix = f"Rewards are {', '.join(REWARDS)}, judge, model, and FILE.py:FUNCTION."
        raise UserError("rewards", kind[:200], "is unknown.", fix)
    if isinstance(weight, bool) or not isinstance(weight, (int, float)) or not abs(weight) <= MOST_WEIGHT:
        fix = f"Give a number from -{MOST_WEIGHT} to {MOST_WEIGHT}."
        raise UserError("rewards", str(weight)[:80], f"is not the weight of {kind}.", fix)
    if not isinstance(name, str) or not 0 < len(name) <= 80 or not name.isprintable():
        raise UserError(
            "rewards", name, f"is not a name of {kind}.", "Give a text of 1 to 80 characters that can be printed."
        )
    options = {key: value for key, value in entry.items() if key not in _RESERVED}
    return Reward(name, float(weight), options, kind if name != kind else "")


def check_options(reward: Reward) -> None:
    """Checks the options of a built-in reward or of a judge; those of a user's function reach it as they are.

    Raises:
        UserError: an option is unknown, missing or wrong, or a package is missing.
    """
    if not reward.own:
        from training.rewards import reward_options

        reward_options.check(reward.kind, reward.options)


def functions_in(field_name: str, file: str, code: str) -> list[str]:
    """The functions in the code of a user, apart from those with a leading underscore.

    Raises:
        UserError: the code is not valid Python, or has no such function.
    """
    try:
        body = ast.parse(code).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = f"line {error.lineno}: {error.msg}" if isinstance(error, SyntaxError) else str(error)
        raise UserError(field_name, file, f"is not valid Python: {line}.", "Correct the line.") from None
    names = [part.name for part in body if isinstance(part, ast.FunctionDef) and not part.name.startswith("_")]
    if not names:
        raise UserError(field_name, file, "has no function.", "Write def NAME(prompt, answer, expected).")
    return names


def _can_be_stored(entry: Any) -> bool:
    """True if it is JSON in UTF-8 that databases take."""
    try:
        return not _NUL.search(json.dumps(entry, ensure_ascii=False, allow_nan=False).encode())
    except (ValueError, RecursionError):
        return False


def _entries(text: str) -> list[Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError("rewards", text[:200], f"is not valid JSON: {error}.", _FORMS) from None
    return found if isinstance(found, list) else [found]


def _named(part: str) -> dict[str, Any]:
    found = _WEIGHTED.fullmatch(part.strip())
    if found is None:
        raise UserError("rewards", part.strip()[:200], "is not NAME or NAME*WEIGHT.", _FORMS)
    try:
        return {"reward": found["name"], "weight": float(found["weight"] or 1)}
    except ValueError:
        fix = "Write a number after *, such as exact_match*0.5."
        raise UserError("rewards", part.strip()[:200], "has a weight that is not a number.", fix) from None
