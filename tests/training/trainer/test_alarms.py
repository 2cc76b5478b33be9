"""Alarms of a run that trains on rewards: each is told once, names its cause, and has a fix."""

import math
from typing import Any

import pytest

from training.config.run_config import RunConfig
from training.trainer.alarms import STEPS, Alarms

START = {"reward": 0.5, "reward_std": 0.3, "all_equal_groups": 0.2, "completion_length": 20.0, "cut_off": 0.1}


def alarms(**settings: Any) -> Alarms:
    fixed = {"task": "grpo", "max_completion_length": 64, "learning_rate": 1e-3, "micro_batch_size": 64}
    config = RunConfig.model_validate({"model": "m", "data": "d"} | fixed | settings)
    return Alarms(config)


def told(watch: Alarms, steps: int = 3 * STEPS, **values: float) -> list[str]:
    """What is told in steps with these values."""
    return [note.message for _ in range(steps) for note in watch.after_step(START | values)]


def begun(**settings: Any) -> Alarms:
    watch = alarms(**settings)
    watch.begin(START)
    return watch


def test_a_run_that_learns_has_no_alarm() -> None:
    watch = begun()
    assert [told(watch, 1, reward=0.5 + step / 100, completion_length=20.0 + step) for step in range(40)] == [[]] * 40


def test_prompts_that_are_solved_end_the_learning() -> None:
    watch = begun()
    told(watch, 5, reward=0.9)
    (message,) = told(watch, reward=1.0, all_equal_groups=1.0)
    assert "the model has learned what these can teach" in message


def test_samples_that_have_become_alike_need_a_lower_rate() -> None:
    watch = begun()
    told(watch, 5, reward=0.6)
    messages = told(watch, reward=0.45, all_equal_groups=1.0)
    (message,) = [text for text in messages if "have become alike" in text]
    assert "The mean reward was 0.6 before. Lower learning_rate (0.001), for example to 0.0001" in message


def test_without_any_reward_the_prompts_are_too_hard() -> None:
    watch = alarms()
    watch.begin(START | {"reward": 0.0, "reward_std": 0.0})
    (message,) = told(watch, reward=0.0, all_equal_groups=1.0)
    assert "raise num_generations or temperature, or use easier prompts" in message


def test_a_reward_that_takes_points_away_is_learned_when_it_takes_few() -> None:
    watch = alarms()
    watch.begin(START | {"reward": -30.0})
    told(watch, 5, reward=-10.0)
    (message,) = told(watch, reward=-1.0, all_equal_groups=1.0)
    assert "the model has learned what these can teach" in message


@pytest.mark.parametrize("settings", [{}, {"kl_coefficient": 0.1}])
def test_a_reward_that_falls_is_told_within_ten_steps(settings: dict[str, Any]) -> None:
    (message,) = told(begun(**settings), 10, reward=0.1)
    assert message.startswith("The mean reward of the last 5 steps is 0.1, and it was 0.5 at the start")
    assert ("kl_coefficient" in message) == (not settings)


def test_a_fall_that_other_prompts_explain_is_none() -> None:
    # 40 prompts now and 16 at the start: three standard errors of the difference are 3 * 0.3 * sqrt(1 / 40 + 1 / 16) = 0.27.
    assert told(begun(), reward=0.5 - 0.26) == []
    assert len(told(begun(), reward=0.5 - 0.28)) == 1


def test_a_reward_that_falls_to_nothing_is_surer_than_one_that_varies() -> None:
    for std, alarms_told in ((0.5, 0), (0.0, 1)):
        watch = alarms(micro_batch_size=32)
        watch.begin(START | {"reward": 0.45, "reward_std": 0.5})
        assert len(told(watch, 10, reward=0.0, reward_std=std)) == alarms_told


def test_what_was_learned_and_is_lost_is_told() -> None:
    watch = begun()
    assert told(watch, 10, reward=0.95) == []
    (message,) = told(watch, 10, reward=0.55)
    assert "is 0.71, and it was 0.95 before: training makes the model worse" in message


def test_steps_without_a_reward_are_no_fall() -> None:
    assert told(begun(), reward=math.nan) == []


def test_one_bad_step_is_no_alarm() -> None:
    assert told(begun(), 4, reward=0.0, completion_length=60.0, cut_off=0.8) == []


def test_samples_that_grow_until_they_are_cut_off() -> None:
    (message,) = told(begun(), completion_length=60.0, cut_off=0.8)
    assert message.startswith("80% of the samples are cut off (10% at the start); their mean length is 60 tokens (20).")
    assert "(64)" in message


def test_without_samples_of_the_untrained_model_the_first_steps_are_the_start() -> None:
    watch = alarms()
    assert told(watch, 5) == []
    assert len(told(watch, reward=0.1)) == 1


@pytest.mark.parametrize(
    ("length", "cut_off", "told_of"), [(40.0, 0.3, 0), (60.0, 0.8, 1), (24.0, 0.4, 0), (24.0, 0.6, 1)]
)
def test_a_student_whose_samples_no_longer_end_has_left_its_teacher(
    length: float, cut_off: float, told_of: int
) -> None:
    watch = alarms(task="distill")
    watch.begin({"completion_length": 20.0, "cut_off": 0.1, "teacher_logprob": -1.0})
    values = {"completion_length": length, "cut_off": cut_off}
    messages = [note.message for _ in range(STEPS) for note in watch.after_step(values)]
    assert len(messages) == told_of
    assert all("left what the teacher knows" in text and "(task sft)" in text and "(64)" in text for text in messages)


def history(*points: tuple[int, float, float]) -> list[dict[str, Any]]:
    """A trainer's log: step, training reward, held-out reward."""
    return [
        entry
        for step, reward, held_out in points
        for entry in ({"step": step, "reward": reward}, {"step": step, "eval_reward": held_out, "eval_loss": -held_out})
    ]


def test_rewards_that_are_learned_in_place_of_the_task() -> None:
    log = history((10, 0.5, 0.6), (20, 0.8, 0.3))
    (note,) = begun().after_evaluation(log, spread=0.5, rows=200)
    assert (
        "fell from 0.6 (step 10) to 0.3 (step 20), while that of the training samples rose from 0.5 to 0.8"
        in note.message
    )
    assert note.level == "warning"


def test_both_rewards_that_fall_need_a_lower_rate() -> None:
    watch = begun()
    log = history((10, 0.5, 0.6), (20, 0.4, 0.3))
    (note,) = watch.after_evaluation(log, spread=0.5, rows=200)
    assert "to 0.3 (step 20). Lower learning_rate" in note.message
    assert watch.after_evaluation(log, spread=0.5, rows=200) == []  # told already


def test_few_held_out_rows_tell_no_small_fall() -> None:
    log = history((10, 0.5, 0.6), (20, 0.8, 0.5))
    assert begun().after_evaluation(log, spread=0.5, rows=10) == []
    assert begun().after_evaluation(log[:2], spread=0.5, rows=10) == []
