"""What decides numbers without being written in a file: other programs' defaults, and keys that say more than their name."""

import json

import pytest
import yaml
from subtest_table import table

from training.errors import UserError
from training.foreign.entries import Outcome
from training.foreign.translate import import_text

CHAT = {"model.model_name": "m", "training.trainer_type": "TRL_SFT"}


def imported(values, folder=None):
    return import_text(yaml.safe_dump(values) if isinstance(values, dict) else values, folder)


def note(values, key):
    return next(entry for entry in imported(values).entries if entry.key == key).note


@table(
    ("values", "expected"),
    [
        ("trl sft --model_name_or_path m", True),
        ("trl sft --model_name_or_path m --assistant_only_loss", False),
        ("trl sft --model_name_or_path m --completion_only_loss true", False),
        ("trl dpo --model_name_or_path m", False),
        ({"model_name_or_path": "m", "max_length": 64, "packing": True}, True),
        ({"model_name_or_path": "m", "learning_rate": 1e-4}, False),  # of a script with a trainer of its own
        (CHAT, True),
        (CHAT | {"data.train.collator_name": "text_completions_only_with_padding"}, False),
        (CHAT | {"training.trainer_type": "TRL_DPO"}, False),
        ({"base_model": "m"}, False),
        ({"finetuning_type": "lora"}, False),
        ("swift sft --model m", False),
    ],
)
def test_all_tokens_carry_loss_where_the_program_masks_none(values, expected):
    assert imported(values).config().train_on_prompt is expected


@table(
    ("values", "expected"),
    [
        ({"finetuning_type": "lora", "neat_packing": True}, "packed"),
        ({"finetuning_type": "lora", "packing": True, "neat_packing": True}, "packed"),
        ({"finetuning_type": "lora", "stage": "pt"}, "packed"),
        ({"finetuning_type": "lora", "stage": "pt", "packing": False}, "none"),
        ({"finetuning_type": "lora"}, "auto"),
    ],
)
def test_llamafactory_packs_rows_into_the_length(values, expected):
    assert imported(values).config().packing == expected


def test_llamafactory_1_trains_all_weights_at_a_constant_rate():
    config = imported({"model": "m", "train_dataset": "d", "cutoff_len": 64}).config()
    assert (config.method, config.lr_scheduler, config.learning_rate, config.weight_decay) == (
        "full",
        "constant",
        1e-4,
        0.01,
    )
    assert (config.micro_batch_size, config.precision, config.warmup) == (1, "bf16", 0)
    config = imported(
        {"model": "m", "cutoff_len": 64, "peft_config": {"name": "lora"}, "quant_config": {"name": "bnb"}}
    ).config()
    assert (config.method, config.quantization, config.lora_r, config.lora_alpha, config.lora_dropout) == (
        *("qlora", "4bit", 8, 16),
        0.05,
    )
    config = imported(
        {"model": "m", "cutoff_len": 64, "optim_config": {"name": "muon", "wd": 0.2}, "global_batch_size": 8}
    ).config()
    assert (config.optimizer, config.weight_decay, config.momentum, config.adam_beta2) == ("muon", 0.2, 0.95, 0.95)
    assert config.gradient_accumulation_steps == 8


@table(
    ("more", "named"),
    [
        ({}, "is not given: leaves out longer rows; Lathe truncates them."),
        ({"excess_length_strategy": "raise"}, "stops at longer rows; Lathe truncates them."),
        ({"excess_length_strategy": "truncate"}, "is what Lathe does."),
    ],
)
def test_axolotl_leaves_out_longer_rows(more, named):
    assert note({"base_model": "m"} | more, "excess_length_strategy") == named


def test_axolotl_splits_texts_saves_each_epoch_and_evaluates_if_it_is_told_to():
    texts = imported({"base_model": "m", "pretraining_dataset": [{"path": "a/b"}], "val_set_size": 0.1})
    assert texts.config().task == "pretraining"
    assert "excess_length_strategy" not in {entry.key for entry in texts.entries}
    assert (texts.config().save_strategy, texts.config().save_total_limit, texts.config().eval_steps) == ("epoch", 4, 0)
    assert imported({"base_model": "m", "saves_per_epoch": 2}).config().save_strategy == "steps"


@table(
    ("words", "section", "expected"),
    [
        ("full_shard auto_wrap", None, ("fsdp", "none")),
        (["full_shard", "offload"], None, ("fsdp", "cpu")),
        ("full_shard", {"offload_params": True}, ("fsdp", "cpu")),
        ("full_shard", "shards.json", ("fsdp", "cpu")),
        ("no_shard", None, ("ddp", "none")),
        (None, {"offload_params": True}, ("single", "none")),
    ],
)
def test_words_section_and_file_of_fsdp_count_together(tmp_path, words, section, expected):
    (tmp_path / "shards.json").write_text(json.dumps({"fsdp_offload_params": True}))
    values = {"model_name_or_path": "m", "num_train_epochs": 1, "fsdp": words, "fsdp_config": section}
    config = imported(values, tmp_path).config()
    assert (config.strategy, config.offload_param) == expected


def test_a_file_of_fsdp_that_is_not_here_is_named():
    values = {"model_name_or_path": "m", "num_train_epochs": 1, "fsdp": "full_shard", "fsdp_config": "away.json"}
    assert note(values, "fsdp_config") == "away.json is not here. Import that file too."


@table(
    ("values", "expected"),
    [
        ("swift sft --model m --torch_dtype float16", "fp16"),
        ("swift sft --model m --torch_dtype bfloat16", "bf16"),
        ("swift sft --model m", "auto"),
        ("accelerate launch --mixed_precision no train.py --model_name_or_path m --learning_rate 1e-4", "auto"),
    ],
)
def test_the_format_of_the_weights_decides_the_precision_where_it_does(values, expected):
    assert imported(values).config().precision == expected


@table(
    ("command", "expected"),
    [
        ("python run_clm.py --model_name_or_path m --train_file d --do_train", ("packed", 0.05)),
        ("python run_clm.py --model_name_or_path m --train_file d --do_train --eval_strategy epoch", ("packed", 0.05)),
        ("python train.py --model_name_or_path m --train_file d", ("auto", 0)),
    ],
)
def test_examples_of_transformers_that_cut_texts_into_blocks_pack(command, expected):
    config = imported(command).config()
    assert (config.packing, config.eval_split) == expected


def test_a_script_without_bf16_says_in_which_format_it_computes():
    values = "python train.py --model_name_or_path m --learning_rate 1e-4"
    assert "format of the loaded weights" in note(values, "bf16")
    assert imported(values + " --torch_dtype bfloat16").config().precision == "bf16"
    assert imported(values + " --fp16").config().precision == "fp16"


@table(
    ("values", "key", "named"),
    [
        (
            {"model_name_or_path": "m", "num_train_epochs": 1, "tokenizer_name_or_path": "m"},
            "tokenizer_name_or_path",
            False,
        ),
        (
            {"model_name_or_path": "m", "num_train_epochs": 1, "tokenizer_name_or_path": "n"},
            "tokenizer_name_or_path",
            True,
        ),
        ({"base_model": "m", "tokenizer_config": "m"}, "tokenizer_config", False),
        (CHAT | {"model.tokenizer_name": "n"}, "model.tokenizer_name", True),
    ],
)
def test_another_tokenizer_is_named_and_the_models_own_is_not(values, key, named):
    entry = next(entry for entry in imported(values).entries if entry.key == key)
    assert (entry.outcome is Outcome.UNSUPPORTED) is named


def test_a_script_that_takes_trls_adapter_has_its_defaults(tmp_path):
    script = "from trl import ModelConfig, SFTConfig, SFTTrainer, TrlParser, get_peft_config\n"
    script += "args, model = TrlParser((SFTConfig, ModelConfig)).parse_args_and_config()\n"
    script += "SFTTrainer(model.model_name_or_path, args=args, peft_config=get_peft_config(model))\n"
    (tmp_path / "go.py").write_text(script)
    config = imported("python go.py --model_name_or_path m --use_peft --lora_r 4", tmp_path).config()
    assert (config.method, config.lora_r, config.lora_alpha, config.lora_dropout) == ("lora", 4, 32, 0.05)


def test_torchtune_has_the_ranks_of_its_builders_and_holds_out_what_the_split_leaves():
    values = {"model._component_": "torchtune.models.llama3.lora_llama3_8b", "dataset.split": "train[:90%]",
              "dataset_val.split": "train[90%:]"}  # fmt: skip
    config = imported(values).config()
    assert (config.lora_r, config.lora_alpha, config.eval_split) == (8, 16, 0.1)
    assert note(values, "dataset_val.split") == "dataset.split leaves these rows."


@table(
    "text",
    [
        "docker run --gpus all server --model-id m --num-shard 2",
        yaml.safe_dump({"dataset_name": "d", "task": "questions", "output_type": "multiple_choice"}),
        yaml.safe_dump({"model_name_or_path": "m", "template": "llama3", "export_dir": "out"}),
        "python scripts/llama_pro.py --model_name_or_path m --num_expand 8",
    ],
)
def test_what_starts_no_training_is_not_imported(text):
    with pytest.raises(UserError):
        import_text(text, None)


def test_a_notebook_counts_by_its_code_and_not_by_its_outputs():
    code = "%pip install a \\\n  b\nfrom trl import SFTConfig, SFTTrainer\n"
    code += "SFTTrainer(model='m', args=SFTConfig(learning_rate=3e-4, packing=True))\n"
    cells = [{"cell_type": "code", "source": code, "outputs": [{"text": "x" * 300_000}]}]
    config = import_text(json.dumps({"cells": cells}), None).config()
    assert (config.learning_rate, config.packing, config.train_on_prompt) == (3e-4, "packed", True)


def test_a_shell_line_alone_in_a_block_of_a_notebook_leaves_python():
    code = "import os\nif 'X' in os.environ:\n    !pip install trl\nelse:\n    %cd /\n"
    code += "from trl import SFTTrainer\nSFTTrainer('m', max_seq_length=64)\n"
    notebook = json.dumps({"cells": [{"cell_type": "code", "source": code}]})
    assert import_text(notebook, None).config().max_length == 64


def test_unsloth_trains_all_linear_modules_unless_told_otherwise():
    script = "from unsloth import FastLanguageModel\nfrom trl import SFTConfig, SFTTrainer\n"
    script += "model = FastLanguageModel.get_peft_model(model, r=8)\nSFTTrainer(model, args=SFTConfig(max_steps=5))\n"
    config = import_text(script, None).config()
    assert (config.target_modules, config.train_on_prompt) == ("all-linear", True)


def test_the_layers_of_an_adapter_in_a_script_are_named():
    script = "from peft import LoraConfig\nfrom trl import SFTTrainer\n"
    script += "SFTTrainer('m', peft_config=LoraConfig(layers_to_transform=[0]))\n"
    entry = next(entry for entry in import_text(script, None).entries if entry.key == "layers_to_transform")
    assert entry.outcome is Outcome.UNSUPPORTED
