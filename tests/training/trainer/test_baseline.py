"""Samples of the untrained model, drawn before the first step: what a run says of them, and when it ends there."""

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tiny import make_model
from trainer_process import Trained, start, train_here

from training.config.run_config import RunConfig
from training.errors import UserError
from training.rewards.reward_process import RewardProcess
from training.run_folder.events import Finished, Metrics, Note, SampleDrawn
from training.trainer.advantages import advantages
from training.trainer.baseline import Baseline, Compared
from training.trainer.sample_records import Scored

NAMES = ("reward", "reward_std", "all_equal_groups", "completion_length", "cut_off")
CODE = """
def letters(prompt, answer, expected, row):
    return len(set(answer)) / 10 + row["number"] / 100
"""
SETTINGS: dict[str, Any] = {
    "task": "grpo", "rewards": "letters", "reward_code": CODE, "num_generations": 4, "max_completion_length": 6, "max_steps": 1,
    "precision": "fp32", "optimizer": "sgd", "method": "full", "answer_rows": 0, "eval_steps": 0, "eval_split": 0, "max_length": 40,
    "micro_batch_size": 8, "baseline_prompts": 2, "save_steps": 0,
}  # fmt: skip


def baseline(rewards: Sequence[float | None], *, ended: bool = True, lost: Sequence[int] = ()) -> Baseline:
    """That of samples with these rewards, two of each prompt. `lost` are the numbers of those for which a reward failed."""
    config = RunConfig(model="m", data="d", task="grpo", num_generations=2, max_completion_length=9)
    samples = [
        Scored(number, 3, ended=ended, scores={"one": reward}, reward=reward, lost=number in lost)
        for number, reward in enumerate(rewards)
    ]
    return Baseline(advantages([samples], config), config, seconds=2.0)


def refusal(
    rewards: Sequence[float | None], expected: Sequence[float] = (), *, ended: bool = True, wrong: Sequence[float] = ()
) -> str:
    with pytest.raises(UserError) as error:
        baseline(rewards, ended=ended).check(lambda: Compared(expected, wrong))
    return str(error.value)


def test_a_run_goes_on_if_the_samples_of_any_prompt_differ_in_reward() -> None:
    def compare() -> Compared:
        pytest.fail("other answers are scored, though nothing has to be explained")

    baseline([0.0, 0.0, 0.0, 1.0]).check(compare)


def test_without_any_reward_the_expected_answers_tell_whether_the_rewards_work() -> None:
    assert "The expected answers get 0.75 on average: the rewards work" in refusal([0.0] * 4, [1.0, 0.5])
    assert "The expected answers get the same: probably a reward is wrong." in refusal([0.0] * 4, [0.0, 0.0])
    assert "The expected answers have no reward: probably a reward is wrong." in refusal([0.0] * 4, [])
    assert "train it on the expected answers first" in refusal([0.0] * 4, [1.0]).lower()


def test_samples_that_get_all_are_nothing_to_learn_from() -> None:
    assert "All 4 samples of the untrained model get 1, so that nothing is left to learn" in refusal([1.0] * 4)


def test_a_reward_that_takes_points_away_is_not_wrong_where_it_takes_none() -> None:
    for expected, wrong in (([0.0, 0.0], [0.0, -1.0]), ([-3.0, -5.0], []), ([], [-1.0])):
        said = refusal([0.0] * 4, expected, wrong=wrong)
        assert (
            "get 0, so that nothing is left to learn. The expected answers get no more, and other answers less" in said
        )
    assert "The expected answers get -2 on average: the rewards work" in refusal([-8.0] * 4, [-2.0], wrong=[-9.0])
    baseline([-3.0, -4.0]).check(lambda: Compared([], []))


def test_samples_with_some_points_are_too_hard_if_the_expected_answers_get_more() -> None:
    assert "The expected answers get 1 on average: the rewards work" in refusal([0.2] * 4, [1.0])


def test_samples_that_are_all_cut_off_need_a_greater_length() -> None:
    said = refusal([0.0] * 4, [1.0], ended=False)
    assert said.startswith("max_completion_length (given: 9): all 4 samples") and "for example to 36" in said


def test_prompts_whose_samples_score_alike_have_no_gradient() -> None:
    assert "The samples of each of 2 prompts have equal rewards" in refusal([0.0, 0.0, 1.0, 1.0])


def test_samples_to_which_no_reward_applies_end_the_run() -> None:
    assert "No reward applies to any of 4 samples" in refusal([None] * 4)


def test_equal_rewards_are_no_verdict_if_other_samples_were_lost() -> None:
    found = baseline([0.0, 0.0, 0.0, None], lost=[3])
    found.check(lambda: Compared([], []))
    [warning] = found.warnings()
    assert warning.startswith("1 of 4 samples of the untrained model have no score")


def test_every_refusal_says_how_to_train_anyway() -> None:
    for rewards in ([0.0] * 4, [1.0] * 4, [0.0, 0.0, 1.0, 1.0]):
        assert refusal(rewards).endswith("Set baseline_prompts to 0 to train anyway.")


def test_many_prompts_with_equal_rewards_are_warned_of() -> None:
    (solved,) = baseline([1.0] * 19 + [0.0]).warnings()
    assert solved.startswith("90% of the prompts") and solved.endswith("Choose harder prompts.")
    (hard,) = baseline([0.0] * 19 + [1.0]).warnings()
    assert "Choose easier prompts" in hard
    assert baseline([0.0, 1.0] * 4).warnings() == []


def test_many_samples_that_are_cut_off_are_warned_of() -> None:
    (warning,) = baseline([0.0, 1.0] * 4, ended=False).warnings()
    assert warning.startswith("100% of the untrained model's samples are cut off after 9 tokens")


def test_the_note_tells_the_time_of_the_whole_run() -> None:
    # 8 samples in 2 s are 0.25 s each; a step has the global batch of them.
    found = baseline([0.0, 1.0] * 4)
    seconds = 0.25 * found.config.global_batch_size * 100
    assert f"those of all 100 steps take {seconds // 60:.0f} min" in found.note(100)
    config = found.config.model_copy(update={"num_iterations": 2})  # each batch of samples is for two steps
    assert f"those of all 200 steps take {seconds // 60:.0f} min" in replace(found, config=config).note(200)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("baseline")
    make_model(home / "model")
    rows = [{"prompt": f"say {number}: ", "completion": "abc"[number % 3], "number": number} for number in range(8)]
    (home / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return home


def values(trained: Trained, step: int) -> list[float | None]:
    (metrics,) = [event.values for event in trained.of(Metrics) if event.step == step and "reward" in event.values]
    return [metrics[name] for name in NAMES]


@pytest.mark.train
@pytest.mark.parametrize("split", [{}, {"strategy": "ddp", "num_processes": 2, "micro_batch_size": 4}])
def test_the_samples_of_the_untrained_model_are_those_of_the_first_step(
    tmp_path: Path, home: Path, split: dict[str, Any]
) -> None:
    """Two prompts with four samples are the whole first step."""
    trained = start(tmp_path / "run", home / "model", home / "rows.jsonl", **SETTINGS | split)
    assert trained.finish() == 0, trained.log()
    assert values(trained, 0) == pytest.approx(values(trained, 1))
    before, after = ([one for one in trained.of(SampleDrawn) if one.step == step] for step in (0, 1))
    assert [(one.sample, one.text, one.reward) for one in before] == [
        (one.sample, one.text, one.reward) for one in after
    ]
    assert any(event.message.startswith("The untrained model has a mean reward of") for event in trained.of(Note))


@pytest.mark.train
def test_prompts_that_do_not_fill_the_ranks_are_counted_once(tmp_path: Path, home: Path) -> None:
    odd = {"num_generations": 3, "baseline_prompts": 3, "micro_batch_size": 6}
    alone = train_here(tmp_path / "alone", home / "model", home / "rows.jsonl", **SETTINGS | odd)
    split = odd | {"strategy": "ddp", "num_processes": 2, "micro_batch_size": 3}
    shared = start(tmp_path / "shared", home / "model", home / "rows.jsonl", **SETTINGS | split)
    assert shared.finish() == 0, shared.log()
    assert values(shared, 0) == pytest.approx(values(alone, 0))


@pytest.mark.train
def test_a_run_without_anything_to_learn_ends_before_its_first_step(tmp_path: Path, home: Path) -> None:
    settings = SETTINGS | {"rewards": "exact_match", "reward_code": None}
    trained = start(tmp_path / "run", home / "model", home / "rows.jsonl", **settings)
    assert trained.finish() == 1
    assert trained.failure.expected and "all 8 samples of the untrained model are cut off" in trained.failure.message
    assert not trained.losses() and len(trained.of(SampleDrawn)) == 8


@pytest.mark.train
def test_a_run_that_is_to_be_reviewed_ends_with_its_samples(tmp_path: Path, home: Path) -> None:
    trained = start(tmp_path / "run", home / "model", home / "rows.jsonl", **SETTINGS | {"stop_after_baseline": True})
    assert trained.finish() == 0, trained.log()
    (finished,) = trained.of(Finished)
    assert finished.outcome == "review" and not trained.losses() and values(trained, 0)


BAD = """
import socket, time
def zero(answer): return 0
def one(answer): return 1
def fined(answer, expected): return -len(answer.strip("xyz")) if answer in ("", expected) else 0
def wants(answer, expected): return 0.25 + 0.5 * (answer == expected)
def raises(answer): raise ValueError("no")
def loops(answer):
    while True: pass
def sleeps(answer): time.sleep(1000)
def allocates(answer): return len(bytearray(10 * 2**30))
def connects(answer): socket.create_connection(("127.0.0.1", 9))
def writes(answer): open("FILE", "w").write("x")
def nan(answer): return float("nan")
def good(answer): return len(set(answer))
"""


@pytest.mark.train
@pytest.mark.parametrize(
    ("rewards", "settings", "cause", "fix"),
    [
        ("zero", {}, "all 8 samples of the untrained model are cut off after 6 tokens", "for example to 24"),
        ("zero", {"ends": True}, "The expected answers get the same: probably a reward is wrong", "lathe reward"),
        ("one", {}, "get 1, so that nothing is left to learn", "harder prompts"),
        ("fined", {"ends": True}, "other answers less", "harder prompts"),
        ("wants", {}, "The expected answers get 0.75 on average: the rewards work", "task sft"),
        ("raises", {}, "Reward raises: sample 1, rewards.py, line 7: ValueError: no", "Look at the samples"),
        ("raises", {"baseline_prompts": 0}, "nothing is learned. Reward raises", "clone the run"),
        ("good", {"baseline_prompts": 0, "reward_code": f"{BAD}import no_such_package"}, "no_such_package", "clone the run"),
    ],
)  # fmt: skip
def test_a_run_that_can_learn_nothing_names_the_cause_and_the_fix(
    tmp_path: Path, home: Path, rewards: str, settings: dict[str, Any], cause: str, fix: str
) -> None:
    model = home / "model"
    if settings.get("ends"):  # each token ends a sample
        model = Path(shutil.copytree(model, tmp_path / "model"))
        (model / "generation_config.json").write_text(json.dumps({"eos_token_id": list(range(262))}))
    named = SETTINGS | {"rewards": rewards, "reward_code": BAD, "max_steps": 5} | settings
    named.pop("ends", None)
    with pytest.raises(UserError) as error:
        train_here(tmp_path / "run", model, home / "rows.jsonl", **named)
    assert cause in str(error.value) and fix in error.value.fix


@pytest.mark.train
def test_rewards_that_harm_are_named_and_cost_only_their_own_scores(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hurried = partial(RewardProcess, seconds_per_batch=1.0)
    monkeypatch.setattr("training.trainer.scorer.RewardProcess", hurried)
    names = ["raises", "loops", "sleeps", "allocates", "connects", "writes", "nan"]
    settings = SETTINGS | {"rewards": ", ".join([*names, "good"]), "reward_code": BAD.replace("FILE", f"{tmp_path}/x")}
    trained = train_here(tmp_path / "run", home / "model", home / "rows.jsonl", **settings)
    told = [note.message for note in trained.of(Note) if note.level == "warning" and note.message.startswith("Reward ")]
    assert [text.split()[1].rstrip(":") for text in told] == names and not (tmp_path / "x").exists()
    assert trained.series("reward")[1] == trained.series("reward/good")[1] > 0 and trained.losses()
