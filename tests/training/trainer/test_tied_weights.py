"""Adapters on embeddings or head of models that share them: every strategy trains the same model."""

from typing import Any

import pytest
import torch
from trained import Recipe, model, trained
from trainer_process import Trained

from training.errors import UserError
from training.trainer.tied_weights import check_ties, kept_tied, ties

SETTINGS = {
    "max_steps": 2, "eval_steps": 0, "eval_split": 4, "warmup": 0, "optimizer": "sgd", "learning_rate": 0.05, "max_grad_norm": 0,
    "precision": "fp32", "micro_batch_size": 2, "target_modules": "q_proj", "verify_rows": 2,
}  # fmt: skip


def train(strategy: str, family: str = "tied_llama", **settings: Any) -> Trained:
    ranks, accumulation = (1, 2) if strategy == "single" else (2, 1)
    split = {"strategy": strategy, "num_processes": ranks, "gradient_accumulation_steps": accumulation}
    return trained(Recipe(family, "counting", SETTINGS | split | settings))


@pytest.mark.train
@pytest.mark.parametrize(
    ("strategy", "settings"),
    [
        ("fsdp", {"modules_to_save": "embed_tokens"}),
        *(
            pytest.param(strategy, settings, marks=pytest.mark.nightly)
            for strategy, settings in (
                ("fsdp", {"modules_to_save": "lm_head"}),
                ("fsdp", {"modules_to_save": "embed_tokens, lm_head"}),
                ("fsdp", {"modules_to_save": "embed_tokens", "lora_init": "pissa"}),  # each rank reads the weights
                ("fsdp", {"modules_to_save": "lm_head", "save_steps": 1, "load_best_at_end": True, "eval_steps": 1}),
                ("fsdp", {"method_options": "trainable_token_indices=[5, 6, 226]"}),
                ("fsdp", {"method": "trainable_tokens", "method_options": "token_indices=[5, 6]", "target_modules": "auto"}),
                ("fsdp", {"target_modules": "q_proj, lm_head"}),
                ("fsdp", {"target_modules": "q_proj, embed_tokens"}),
                ("fsdp", {"family": "gemma3", "modules_to_save": "lm_head"}),
                ("fsdp", {"family": "gemma3", "method_options": "trainable_token_indices=[5, 6]"}),
                ("ddp", {"modules_to_save": "embed_tokens"}),
                ("zero1", {"modules_to_save": "lm_head"}),
                ("zero3", {"modules_to_save": "embed_tokens"}),
                ("zero3", {"target_modules": "q_proj, lm_head"}),
            )
        ),
    ],
)  # fmt: skip
def test_an_adapter_on_tied_embeddings_trains_as_on_one_device(strategy: str, settings: dict[str, Any]) -> None:
    run, alone = train(strategy, **settings), train("single", **settings)
    assert run.losses() == pytest.approx(alone.losses(), rel=2e-6)
    assert run.gradient_norms() == pytest.approx(alone.gradient_norms(), rel=2e-5)
    assert run.evaluations() == pytest.approx(alone.evaluations(), rel=2e-6)
    assert run.summary["parity"]["equal"], run.summary["parity"]


@pytest.fixture
def adapted() -> Any:
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(model("tied_llama"))
    return get_peft_model(base, LoraConfig(target_modules=["q_proj"], modules_to_save=["embed_tokens"]))


@pytest.mark.filterwarnings("ignore")  # of PEFT
def test_a_head_that_is_tied_to_the_trained_copy_of_the_embeddings_ends_the_run(adapted: Any) -> None:
    shared = ties(adapted)
    adapted.tie_weights()  # as accelerate does for FSDP
    with pytest.raises(UserError, match=r"strategy \(given: 'fsdp'\): would train another model: .*embed_tokens"):
        check_ties(shared, adapted, "fsdp")


@pytest.mark.filterwarnings("ignore")  # of PEFT
def test_weights_are_tied_again_as_they_were(adapted: Any) -> None:
    shared = ties(adapted)
    with kept_tied(adapted):
        adapted.to(torch.device("meta"))
        assert ties(adapted) != shared
        adapted.tie_weights()
        assert adapted.get_input_embeddings() is None
    check_ties(shared, adapted, "fsdp")
    assert adapted.get_input_embeddings() is not None
