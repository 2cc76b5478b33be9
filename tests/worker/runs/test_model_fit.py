"""What cannot work is told before a run is queued, with the fix: the model, its modules, the split, the classes."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from subtest_table import table
from tiny import make_data, make_model

from training.config.run_config import RunConfig
from training.errors import Problem
from training.run_folder.record import shared
from worker.runs import checks, submit
from worker.runs.lineage import lineage_of
from worker.runs.settle import resolve, settle


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("models") / "llama")


def refused(home: Path, tmp_path: Path, **settings: Any) -> list[Problem]:
    """Why Start would refuse a run."""
    given = {"data": str(make_data(tmp_path / "rows.jsonl", rows=10)), "method": "lora", **settings}
    return checks.problems(settle(RunConfig.model_validate(given)))


def test_a_name_that_is_nearly_that_of_a_folder_is_no_hub_id(
    home: Path, tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(model.parent.parent)
    typed = f"{model.parent.name}/lama"
    [problem] = refused(home, tmp_path, model=typed)
    assert problem.field == "model" and problem.changes == {"model": f"{model.parent.name}/llama"}
    assert refused(home, tmp_path, model=typed, revision="main") == []
    assert refused(home, tmp_path, model=f"{model.parent.name}/Qwen3-0.6B") == []


def test_the_folder_of_an_adapter_names_its_base_model(home: Path, tmp_path: Path) -> None:
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "adapter_config.json").write_text('{"base_model_name_or_path": "base/model"}')
    [problem] = refused(home, tmp_path, model=str(tmp_path / "adapter"))
    assert "folder of an adapter" in problem.message and "Set model to base/model" in problem.fix


@pytest.mark.parametrize("named", ["model.gguf", "."])
def test_gguf_is_named(home: Path, tmp_path: Path, named: str) -> None:
    (tmp_path / "gguf").mkdir()
    (tmp_path / "gguf" / "model.gguf").write_bytes(b"GGUF")
    [problem] = refused(home, tmp_path, model=str(tmp_path / "gguf" / named))
    assert "this is GGUF" in problem.message and ".safetensors" in problem.fix


def test_a_missing_shard_of_the_weights_is_named(home: Path, tmp_path: Path, model: Path) -> None:
    folder = shutil.copytree(model, tmp_path / "model")
    shards = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    (folder / "model.safetensors").rename(folder / shards["a"])
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
    [problem] = refused(home, tmp_path, model=str(folder))
    assert f"lacks {shards['b']}" in problem.message


def test_target_modules_that_the_model_does_not_have(home: Path, tmp_path: Path, model: Path) -> None:
    [problem] = refused(home, tmp_path, model=str(model), target_modules="c_attn, query_key_value")
    assert (
        problem.field == "target_modules" and "q_proj" in problem.fix and problem.changes == {"target_modules": "auto"}
    )
    for fitting in ("q_proj, c_attn", "self_attn.q_proj", "all-linear", ".*proj"):
        assert refused(home, tmp_path, model=str(model), target_modules=fitting) == []


def submission(home: Path, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> list[Problem]:
    """Why a run is refused when it is submitted."""
    from training.config.fields import ConfigError
    from worker import celery_app

    monkeypatch.setattr(celery_app, "notify", lambda _: True)
    try:
        submit.submit(RunConfig.model_validate({"method": "lora", **settings}))
    except ConfigError as error:
        return error.problems
    return []


def test_a_split_that_leaves_no_rows(home: Path, tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = {"model": str(model), "data": str(make_data(tmp_path / "rows.jsonl", rows=10))}
    [problem] = submission(home, monkeypatch, **run, eval_split=10)
    assert problem.field == "eval_split" and "has 10 training rows" in problem.message
    [problem] = submission(home, monkeypatch, **run, eval_split=4, max_samples=4)
    assert "has 4 training rows" in problem.message
    assert submission(home, monkeypatch, **run, eval_split=9) == []


def test_rows_of_one_class(home: Path, tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "classes.jsonl"
    file.write_text("".join(json.dumps({"text": f"row {n}", "label": "good"}) + "\n" for n in range(30)))
    run = {"model": str(model), "task": "classification"}
    [problem] = submission(home, monkeypatch, **run, data=str(file))
    assert "the same class in every row" in problem.message
    assert "the same class in every row" in refused(home, tmp_path, **run, data=str(file))[0].message
    with file.open("a") as stream:
        stream.write('{"text": "row", "label": "bad"}\n')
    assert submission(home, monkeypatch, **run, data=str(file)) == []


def adapter(folder: Path, **values: Any) -> str:
    folder.mkdir(parents=True)
    given = {"peft_type": "LORA", "r": 8, "lora_alpha": 16, "target_modules": ["q_proj", "o_proj"], **values}
    (folder / "adapter_config.json").write_text(json.dumps(given))
    return str(folder)


def test_an_adapter_to_continue_must_have_the_settings_of_the_run(home: Path, tmp_path: Path, model: Path) -> None:
    run = {"model": str(model), "init_adapter": adapter(tmp_path / "adapter")}
    [problem] = refused(home, tmp_path, **run)
    assert problem.changes == {"lora_r": 8, "lora_alpha": 16}  # target_modules auto means those of the adapter
    [problem] = refused(home, tmp_path, **run, **problem.changes, target_modules="q_proj")
    assert problem.changes == {"target_modules": "o_proj, q_proj"}
    assert refused(home, tmp_path, **run, lora_r=8, lora_alpha=16, target_modules="q_proj,o_proj") == []
    [problem] = refused(home, tmp_path, **run, lora_r=8, lora_alpha=16, lora_init="pissa")
    assert problem.changes == {"lora_init": "default"}
    [problem] = refused(home, tmp_path, **run, method="full")
    assert "needs a method with an adapter" in problem.message
    [problem] = refused(home, tmp_path, model=str(model), init_adapter=adapter(tmp_path / "other", peft_type="IA3"))
    assert "an adapter of ia3" in problem.message


@table(
    ("method", "given", "saved", "changes"),
    [
        ("lokr", "r=4", {"r": 4, "alpha": 32}, {"method_options": "r=4, alpha=32"}),
        ("lokr", "r=4, alpha=32, module_dropout=0.1", {"r": 4, "alpha": 32, "init_weights": "lycoris"}, None),
        ("lora", None, {"alpha_pattern": {"down_proj": 32}}, {"method_options": 'alpha_pattern={"down_proj": 32}'}),
        ("lora", "rank_pattern={q_proj: 4}", {"rank_pattern": {"q_proj": 4}, "lora_dropout": 0.5}, None),
        ("fourierft", "n_frequency=50", {"n_frequency": 50, "scaling": 30.0}, {"method_options": "n_frequency=50, scaling=30.0"}),
        ("vera", None, {"projection_prng_key": 7}, {"method_options": "projection_prng_key=7"}),
        ("adalora", None, {"tinit": 5, "orth_reg_weight": 2.0}, None),
    ],
)  # fmt: skip
def test_every_field_of_an_adapter_to_continue_is_compared(
    home: Path, tmp_path: Path, model: Path, method: str, given: str | None, saved: dict[str, Any], changes: Any
) -> None:
    folder = tmp_path / f"adapter-{len(list(tmp_path.iterdir()))}"
    folder.mkdir()
    of_lora = {"r": 16, "lora_alpha": 32} if method == "lora" else {}
    values = {"peft_type": method.upper(), "target_modules": ["q_proj"], **of_lora, **saved}
    (folder / "adapter_config.json").write_text(json.dumps(values))
    run = {"model": str(model), "init_adapter": str(folder), "method": method, "method_options": given}
    problems = refused(home, tmp_path, **run)
    assert [problem.changes for problem in problems] == ([changes] if changes else [])
    assert refused(home, tmp_path, **run | (changes or {})) == []


def test_an_adapter_to_continue_is_named_by_its_run(
    home: Path, tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from worker import celery_app
    from worker.settings import get_settings

    monkeypatch.setattr(celery_app, "notify", lambda _: True)
    given = {"model": str(model), "data": str(make_data(tmp_path / "rows.jsonl", rows=10)), "method": "lora"}
    first = submit.submit(RunConfig.model_validate(given))
    given |= {"init_adapter": first.id, "lora_r": 8, "lora_alpha": 16}
    [problem] = refused(home, tmp_path, **given)
    assert "neither the folder of an adapter nor a run with one" in problem.message
    folder = adapter(get_settings().runs_dir / first.id / "adapter")
    second = submit.submit(RunConfig.model_validate(given))
    assert (second.config["init_adapter"], second.config["target_modules"]) == (first.id, "o_proj, q_proj")
    assert resolve(RunConfig.model_validate(second.config)).init_adapter == folder


def test_a_teacher_is_a_folder_or_a_run_with_a_result_and_the_same_tokens(
    home: Path, tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from worker import celery_app
    from worker.settings import get_settings
    from worker.store import database

    monkeypatch.setattr(celery_app, "notify", lambda _: True)
    data = str(make_data(tmp_path / "rows.jsonl", rows=10))
    first = submit.submit(RunConfig.model_validate({"model": str(model), "data": data}))
    given = {"model": str(model), "data": data, "task": "distill", "teacher": first.id[:9]}
    [problem] = refused(home, tmp_path, **given)
    assert (problem.field, problem.value) == ("teacher", first.id) and "has no result" in problem.message
    folder = adapter(get_settings().runs_dir / first.id / "adapter", base_model_name_or_path=str(model))
    second = submit.submit(RunConfig.model_validate(given))
    assert second.config["teacher"] == first.id
    with database.read() as session:
        resolved = resolve(RunConfig.model_validate(second.config))
        assert resolved.teacher == folder
        assert lineage_of(session=session, run=second).teacher == f"{first.name} (run {first.id})"
    (Path(folder).parent / "config.json").write_text(resolved.model_dump_json())
    assert shared(resolved).teacher == first.id
    other = shutil.copytree(model, tmp_path / "other")
    text = (other / "tokenizer.json").read_text()
    (other / "tokenizer.json").write_text(text.replace('"!":', '"zebra":'))
    for teacher, words in (
        (str(other), "tokens differ"),
        (str(tmp_path), "config.json"),
        ("0" * 12, "is no run"),
        ("b" * 300, "is no folder"),
        ("~nobody-of-that-name", "is no folder"),
    ):
        [problem] = refused(home, tmp_path, **given | {"teacher": teacher})
        assert problem.field == "teacher" and words in problem.message


def test_other_users_name_adapters_in_allowed_folders_only(home: Path, tmp_path: Path, model: Path) -> None:
    from worker.allowed_paths import AllowedPaths

    config = RunConfig.model_validate(
        {"model": str(model), "data": "d", "init_adapter": adapter(tmp_path / "adapter"), "method": "lora"}
    )
    [problem] = AllowedPaths(data=(), models=(model.parent,)).problems(config)
    assert problem.field == "init_adapter" and "LATHE_MODEL_FOLDERS" in problem.fix
    assert AllowedPaths(data=(), models=(model.parent, tmp_path)).problems(config) == []


@table(
    ("given", "changes"),
    [
        (
            {"method": "trainable_tokens", "method_options": "token_indices=[1, 2]"},
            {"method": "lora", "method_options": None},
        ),
        (
            {"method_options": "trainable_token_indices=[1, 2], bias=all"},
            {"method_options": "bias=all"},
        ),
        ({"method_options": "bias=all"}, None),
    ],
)
def test_tokens_of_embeddings_that_are_tied_to_the_head_are_refused_where_they_would_not_train(
    home: Path, tmp_path: Path, model: Path, given: dict[str, Any], changes: dict[str, Any] | None
) -> None:
    tied = shutil.copytree(model, tmp_path / "tied")
    (tied / "config.json").write_text(
        json.dumps(json.loads((tied / "config.json").read_text()) | {"tie_word_embeddings": True})
    )
    pairs = [{"prompt": "a", "chosen": "b", "rejected": str(row)} for row in range(10)]
    (tmp_path / "pairs.jsonl").write_text("\n".join(map(json.dumps, pairs)))
    run = {"task": "dpo", "data": str(tmp_path / "pairs.jsonl"), **given}
    assert refused(home, tmp_path, model=str(model), **run) == []
    problems = refused(home, tmp_path, model=str(tied), **run)
    assert [problem.changes for problem in problems] == ([] if changes is None else [changes])
    assert all("shares with lm_head" in problem.message for problem in problems)
    assert not changes or refused(home, tmp_path, model=str(tied), **run | changes) == []
    assert refused(home, tmp_path, model=str(tied), **given) == []
    in_parts = refused(home, tmp_path, model=str(tied), **given | {"chunked_loss": "on"})
    assert [problem.changes for problem in in_parts] == ([] if changes is None else [{"chunked_loss": "auto"}])
