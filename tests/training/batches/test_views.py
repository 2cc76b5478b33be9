"""The tokens and labels that each task takes from a row."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.matrix.inputs import make_data, make_models
from training.batches.collators import OddsCollator, PairCollator, ScoreCollator, TargetCollator, UnpairedCollator
from training.batches.task_rows import TaskRows, open_rows
from training.batches.views import IGNORED
from training.chat.tokenizer import load
from training.config.run_config import RunConfig
from training.config.task import StoredText, Task
from training.data.rows import DataFile, data_files
from training.tokens.make_store import find_or_make


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("inputs")


@pytest.fixture(scope="module")
def rows(home: Path) -> Any:
    models, data = make_models(home), make_data(home)

    def open_for(task: Task, **settings: Any) -> TaskRows:
        model = str(models[1] if task is Task.SEQ2SEQ else models[0])
        tokenizer = load(model)
        config = RunConfig.model_validate({"model": model, "data": str(data[task]), "task": task.value} | settings)

        def find(file: DataFile, part: StoredText) -> Any:
            return find_or_make(file.path, home / "tokens", tokenizer, model, None, None, lambda *_: None, part)

        return open_rows(config, data_files(config.sources, None), find)

    return open_for


@pytest.fixture(scope="module")
def text(home: Path) -> Any:
    return lambda tokens: load(str(home / "llama")).decode([token for token in tokens if token >= 0])


def learned(row: Any) -> Any:
    return row["labels"][row["labels"] != IGNORED]


def test_pretraining_loses_no_token_to_the_maximum_length(rows: Any) -> None:
    examples = rows(Task.PRETRAINING, max_length=32)
    view = examples.view(np.arange(40))
    assert view.num_rows > 40 and view.lengths.max() == 32
    assert [len(view[index]["input_ids"]) for index in range(view.num_rows)] == view.lengths.tolist()
    whole = np.concatenate([examples.stores[0].row(row)[0] for row in range(40)])
    chunks = np.concatenate([view[index]["input_ids"] for index in range(view.num_rows)])
    alone = int((examples.stores[0].lengths % 32 == 1).sum())  # a chunk of one token would have nothing to predict
    assert len(whole) - len(chunks) == alone
    assert all((view[index]["labels"] == view[index]["input_ids"]).all() for index in range(view.num_rows))


def test_a_pair_shares_its_prompt_and_only_answers_carry_loss(rows: Any, text: Any) -> None:
    pair = rows(Task.DPO).view(np.arange(40))[3]
    assert text(pair["chosen"]["input_ids"]) == "count 3: 1 1 1<|end|>"
    assert text(learned(pair["chosen"])) == "1 1 1<|end|>"
    assert text(learned(pair["rejected"])) == "I do not know<|end|>"


def test_a_conversation_s_earlier_answers_are_part_of_the_prompt(
    tmp_path: Path, home: Path, rows: Any, text: Any
) -> None:
    asked = '[{"role": "user", "content": "a"}, {"role": "assistant", "content": "early"}, {"role": "user", "content": "b"}]'
    answers = (
        '"chosen": [{"role": "assistant", "content": "good"}], "rejected": [{"role": "assistant", "content": "bad"}]'
    )
    file = tmp_path / "chats.jsonl"
    file.write_text(f'{{"messages": {asked}, {answers}}}\n')
    examples = rows(Task.DPO)
    tokenizer, model = load(examples.config.model), examples.config.model
    stores = [
        find_or_make(file, tmp_path / "tokens", tokenizer, model, None, None, lambda *_: None, part)
        for part in (StoredText.CHOSEN, StoredText.REJECTED)
    ]
    pair = TaskRows(examples.config, tuple(stores)).view(np.arange(1))[0]
    assert "early" in text(pair["rejected"]["input_ids"])
    assert text(learned(pair["chosen"])).startswith("good") and "early" not in text(learned(pair["chosen"]))
    assert text(learned(pair["rejected"])).startswith("bad")


def test_source_and_target_are_separate_and_the_target_ends_with_the_end_token(rows: Any, text: Any) -> None:
    view = rows(Task.SEQ2SEQ, max_target_length=3).view(np.arange(40))
    assert text(view[3]["input_ids"]) == "count 3: "  # as the tokenizer gives it, which is how the model is used
    assert text(view[3]["labels"]) == "1 1"
    batch = TargetCollator(0)([view[3], view[30]])
    assert batch["input_ids"].shape == (2, 16) and batch["labels"].shape == (2, 8)
    assert batch["labels"][0].tolist()[3:] == [IGNORED] * 5


def test_undesirable_answers_are_kept_with_their_label(rows: Any) -> None:
    view = rows(Task.KTO).view(np.arange(40))
    assert [view[row]["label"] for row in range(4)] == [1, 0, 1, 0]


def test_each_prompt_is_also_paired_with_the_previous_row_s_answer(rows: Any, text: Any) -> None:
    view = rows(Task.KTO).view(np.arange(40))
    batch = UnpairedCollator(0, 64)([view[3], view[4]])
    texts = [text(row[mask == 1]) for row, mask in zip(batch["KL_input_ids"], batch["KL_attention_mask"], strict=True)]
    assert texts == ["count 3: 1 4 8<|end|>", "count 4: I do not know<|end|>"]
    assert batch["label"].tolist() == [False, True]


def test_a_mismatched_pair_is_truncated_to_max_length() -> None:
    def row(prompt: int, answer: int) -> dict[str, Any]:
        labels = np.r_[np.full(prompt, IGNORED), np.full(answer, 9)]
        tokens = np.r_[np.full(prompt, 5), np.full(answer, 9)]
        return {"input_ids": tokens[:24], "labels": labels[:24], "whole": tokens, "label": True}

    rows = [row(20, 4), row(4, 30)]  # the prompt of the first with the whole answer of the second: 50 tokens
    for limit, whole in ((64, 50), (32, 32)):
        batch = UnpairedCollator(0, limit)(rows)
        assert batch["KL_attention_mask"].sum(1).tolist() == [whole, 8]
        assert batch["KL_completion_mask"].sum(1).tolist() == [whole - 20, 4]


def test_pairs_are_batched_chosen_first(rows: Any, text: Any) -> None:
    view = rows(Task.DPO).view(np.arange(40))
    batch = PairCollator(0)([view[3], view[4]])
    answers = [text(row[mask == 1]) for row, mask in zip(batch["input_ids"], batch["completion_mask"], strict=True)]
    assert answers == ["1 1 1<|end|>", "1 4 8<|end|>", "I do not know<|end|>", "I do not know<|end|>"]
    assert set(ScoreCollator(0)([view[3]])) == {"input_ids", "attention_mask"}
    apart = OddsCollator(0)([view[3]])
    assert apart["chosen_input_ids"].shape == (1, 16) and apart["rejected_labels"].shape == (1, 24)


def test_a_pair_is_used_if_both_answers_begin_within_max_length(rows: Any) -> None:
    assert (rows(Task.DPO).tokens.first_trained > 0).all()
    assert (rows(Task.DPO).tokens.lengths >= rows(Task.DPO).stores[1].lengths).all()


def test_classes_are_numbered_in_their_order(rows: Any) -> None:
    examples = rows(Task.CLASSIFICATION)
    assert examples.classes == ("even", "odd")
    assert [examples.view(np.arange(40))[row]["label"] for row in range(3)] == [0, 1, 0]
