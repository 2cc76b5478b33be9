"""Which runs a sweep has."""

import pytest

from training.config.fields import ConfigError
from worker.sweeps.expand import candidates
from worker.sweeps.spec import parse_sweep

BASE = {"model": "models/tiny", "data": "rows.jsonl"}


def sweep(**fields):
    return parse_sweep({"config": BASE, **fields})


def changes(**fields):
    return [one.changes for one in candidates(sweep(**fields))]


def test_a_grid_trains_every_combination_the_last_setting_fastest():
    found = candidates(sweep(name="ranks", space={"learning_rate": ["1e-4", 3e-4], "lora_r": [8, 16]}))
    assert [one.name for one in found] == [
        "ranks · lr=1e-4 r=8", "ranks · lr=1e-4 r=16", "ranks · lr=0.0003 r=8", "ranks · lr=0.0003 r=16",
    ]  # fmt: skip
    assert [one.config.learning_rate for one in found if one.config] == [1e-4, 1e-4, 3e-4, 3e-4]
    assert [one.config.name for one in found if one.config] == [one.name for one in found]


def test_a_range_with_steps_is_listed_with_its_end():
    assert changes(space={"lora_r": {"low": 8, "high": 32, "step": 8}}) == [{"lora_r": r} for r in (8, 16, 24, 32)]
    assert changes(space={"lora_dropout": {"low": 0, "high": 0.2, "step": 0.1}})[-1] == {"lora_dropout": 0.2}


def test_the_same_seed_draws_the_same_and_more_trials_keep_the_first():
    space = {
        "learning_rate": {"low": 1e-5, "high": 1e-3, "log": True},
        "lora_r": {"low": 4, "high": 64},
        "use_dora": [True, False],
    }
    first = changes(space=space, method="random", trials=6)
    assert first == changes(space=space, method="random", trials=6)
    assert changes(space=space, method="random", trials=12)[:6] == first
    assert changes(space=space, method="random", trials=6, seed=1) != first
    assert all(1e-5 <= one["learning_rate"] <= 1e-3 and 4 <= one["lora_r"] <= 64 for one in first)
    assert {type(one["lora_r"]) for one in first} == {int}


def test_logarithmic_draws_reach_every_order_of_magnitude():
    drawn = changes(space={"learning_rate": {"low": 1e-6, "high": 1e-2, "log": True}}, method="random", trials=40)
    below = sum(one["learning_rate"] < 1e-4 for one in drawn)
    assert 10 <= below <= 30


def test_seeds_repeat_each_configuration():
    found = candidates(sweep(space={"lora_r": [8, 16]}, seeds=3))
    assert [(one.trial, one.config.seed) for one in found if one.config] == [
        (t, s) for t in (1, 2) for s in (42, 43, 44)
    ]
    assert found[1].name == "Sweep · r=8 seed=43"


def test_a_value_that_is_not_valid_is_a_problem_of_its_run_only():
    good, bad = candidates(sweep(space={"lora_r": [8, 0]}))
    assert good.config and not good.problems
    assert bad.config is None
    assert [(one.field, one.value) for one in bad.problems] == [("lora_r", 0)]


@pytest.mark.parametrize(
    ("fields", "field", "words"),
    [
        ({"space": {}}, "space", "names no setting"),
        ({"space": {"lora_rank": [8]}}, "space.lora_rank", "is not a setting"),
        ({"space": {"lora_r": 8}}, "space.lora_r", "neither a list"),
        ({"space": {"lora_r": []}}, "space.lora_r", "has no values"),
        ({"space": {"lora_r": [8, 8]}}, "space.lora_r", "twice"),
        ({"space": {"name": ["a"]}}, "space.name", "cannot vary"),
        ({"space": {"method": {"low": 1, "high": 2}}}, "space.method", "not a number"),
        ({"space": {"lora_r": {"low": 9, "high": 8, "step": 1}}}, "space.lora_r", "low must be below high"),
        ({"space": {"learning_rate": {"low": 1e-5, "high": 1e-3}}}, "space.learning_rate", "infinitely many"),
        ({"space": {"lora_r": [8]}, "method": "random"}, "trials", "is missing"),
        ({"space": {"lora_r": [8]}, "trials": 3}, "trials", "does not apply to a grid"),
        ({"space": {"seed": [1, 2]}, "seeds": 2}, "seeds", "which space varies too"),
        ({"space": {"lora_r": [8]}, "sampler": "tpe"}, "sampler", "is not a field"),
        ({"space": {"lora_r": [8]}, "method": "tpe"}, "method", "grid"),
        ({"space": {"lora_r": [8, 16]}, "method": "random", "trials": 9}, "trials", "2 different configurations"),
        ({"space": {"lora_r": list(range(1, 202))}}, "space", "makes 201 runs"),
    ],
)
def test_a_wrong_sweep_is_refused_with_the_field_and_the_fix(fields, field, words):
    with pytest.raises(ConfigError) as refused:
        candidates(sweep(**fields))
    [problem] = refused.value.problems
    assert problem.field == field
    assert words in problem.message
    assert problem.fix


def test_the_settings_of_all_runs_together_are_limited():
    space = {"seed": [*range(180)]}
    long = BASE | {"chat_template": "{{ messages }}" + "x" * 60_000}
    with pytest.raises(ConfigError, match="in 180 runs; at most 8,000,000") as refused:
        changes(config=long, space=space)
    assert refused.value.problems[0].field == "config"
    assert len(changes(config=long, space={"seed": [*range(100)]})) == 100 and len(changes(space=space)) == 180
