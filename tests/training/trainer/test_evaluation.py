"""The evaluation loss is a mean over tokens, independent of batches and ranks."""

import json
import math
from pathlib import Path

import pytest
import torch
from tiny import make_data, make_model
from trainer_process import start

from training.batches.sets import HeldOutBatches, Sets
from training.trainer.evaluation import ItemMean


def test_batches_count_by_their_items() -> None:
    mean = ItemMean(torch.device("cpu"), batches=2)
    mean.add({"loss": (torch.tensor(2.0), torch.tensor(3))})
    mean.add({"loss": (torch.tensor(6.0), torch.tensor(1))})
    assert mean.values()[0] == {"loss": pytest.approx(3.0)}


def test_a_batch_without_items_does_not_count() -> None:
    mean = ItemMean(torch.device("cpu"), batches=2)
    mean.add({"loss": (torch.tensor(1.5), torch.tensor(1))})
    mean.add({"loss": (torch.tensor(float("nan")), torch.tensor(0))})
    assert mean.values()[0] == {"loss": pytest.approx(1.5)}


def test_a_rank_s_repeated_row_does_not_count() -> None:
    share = HeldOutBatches(Sets(("",), (5,)), 4, rank=1, world=2)
    mean = ItemMean(torch.device("cpu"), len(share), share)
    assert list(share) == [[4]]
    assert not share.ends_empty
    share = HeldOutBatches(Sets(("",), (4,)), 4, rank=1, world=2)
    mean = ItemMean(torch.device("cpu"), len(share), share)
    mean.add({"loss": (torch.tensor(7.0), torch.tensor(1))})
    assert math.isnan(mean.values()[0]["loss"])


def test_a_batch_has_rows_of_one_set() -> None:
    shares = [HeldOutBatches(Sets(("a", "b"), (5, 8)), 2, rank, world=2) for rank in range(2)]
    assert [list(share) for share in shares] == [[[0, 1], [4], [7]], [[2, 3], [5, 6], [0]]]
    assert [share.ends_empty for share in shares] == [False, True]
    assert [[share.set_of(turn) for turn in range(2)] for share in shares] == [[0, 0], [0, 1]]


def test_means_of_each_set_and_of_all() -> None:
    held_out = HeldOutBatches(Sets(("a", "b"), (2, 4)), 2)
    mean = ItemMean(torch.device("cpu"), 2, held_out, num_sets=2)
    mean.add({"loss": (torch.tensor(2.0), torch.tensor(3)), "loss_of_pairs": (torch.tensor(1.0), torch.tensor(1))})
    mean.add({"loss": (torch.tensor(6.0), torch.tensor(1)), "loss_of_pairs": (torch.tensor(3.0), torch.tensor(1))})
    assert mean.values() == [{"loss": 5.0}, {"loss": 3.0}, {"loss": 9.0}]


@pytest.mark.train
def test_two_ranks_report_the_loss_of_all_held_out_tokens(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model, data = make_model(tmp_path / "model"), make_data(tmp_path / "data.jsonl", rows=16)
    rows = [
        ("a", "b"),
        ("count", "a long answer of many letters, longer than any other"),
        ("x", "yz"),
        ("1", "one"),
        ("2", "2"),
    ]
    held_out = tmp_path / "heldout.jsonl"
    held_out.write_text("".join(json.dumps({"prompt": prompt, "completion": answer}) + "\n" for prompt, answer in rows))
    settings = {"strategy": "ddp", "num_processes": 2, "micro_batch_size": 2, "max_steps": 2, "method": "full"}
    trained = start(tmp_path / "run", model, data, validation_data=str(held_out), eval_steps=0, **settings)
    assert trained.finish() == 0, trained.log()

    tuned = AutoModelForCausalLM.from_pretrained(str(tmp_path / "run" / "model"))
    tokenizer = AutoTokenizer.from_pretrained(str(model))
    losses: list[float] = []
    for prompt, answer in rows:
        masked = len(tokenizer(prompt)["input_ids"])
        ids = torch.tensor([*tokenizer(prompt + answer)["input_ids"], tokenizer.eos_token_id])
        logits = tuned(ids[None]).logits[0, :-1]
        losses += torch.nn.functional.cross_entropy(logits, ids[1:], reduction="none")[masked - 1 :].tolist()
    assert list(trained.evaluations().values())[-1] == pytest.approx(sum(losses) / len(losses), rel=1e-5)
