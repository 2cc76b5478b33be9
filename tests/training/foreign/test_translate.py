"""Other programs' configuration files become settings of a run, key by key."""

import json
from pathlib import Path

import pytest
import yaml
from subtest_table import table

from training.errors import UserError
from training.foreign.entries import Outcome
from training.foreign.programs import PROGRAMS, recognized
from training.foreign.translate import import_files, import_text

LLAMAFACTORY = {
    "model_name_or_path": "Qwen/Qwen3-4B", "stage": "dpo", "finetuning_type": "lora", "quantization_bit": 4, "lora_rank": 16,
    "lora_target": "q_proj,v_proj", "pref_beta": 0.2, "pref_loss": "ipo", "cutoff_len": 4096, "per_device_train_batch_size": 2,
    "num_train_epochs": 1.0, "lr_scheduler_type": "cosine", "warmup_ratio": 0.1, "bf16": True, "report_to": "wandb",
    "val_size": 0.1, "eval_strategy": "steps", "eval_steps": 500,
}  # fmt: skip
AXOLOTL = {
    "base_model": "meta-llama/Llama-3.2-1B", "adapter": "qlora", "load_in_4bit": True, "sequence_len": 2048, "sample_packing": True,
    "datasets": [{"path": "rows.jsonl", "type": {"field_instruction": "question", "field_output": "answer"}}],
    "lora_r": 32, "lora_target_linear": True, "micro_batch_size": 2, "num_epochs": 2, "optimizer": "paged_adamw_8bit",
    "lr_scheduler": "cosine", "learning_rate": "2e-4", "saves_per_epoch": 2, "evals_per_epoch": 4, "val_set_size": 0.05,
    "gradient_checkpointing": True, "wandb_project": "tests", "liger_rope": True,
}  # fmt: skip


def imported(values, folder=None):
    return import_text(yaml.safe_dump(values), folder)


def outcome(result, key):
    return next(entry for entry in result.entries if entry.key == key)


def test_a_llamafactory_file_keeps_its_meaning():
    result = imported(LLAMAFACTORY)
    assert result.programs == ("LLaMA-Factory",)
    config = result.config()
    assert (config.task, config.method, config.quantization, config.dpo_loss) == ("dpo", "qlora", "4bit", "ipo")
    assert (config.lora_r, config.lora_alpha, config.target_modules) == (16, 32, "q_proj,v_proj")
    assert (config.beta, config.max_length, config.micro_batch_size, config.warmup) == (0.2, 4096, 2, 0.1)
    assert (config.precision, config.eval_split, config.eval_steps) == ("bf16", 0.1, 500)
    assert outcome(result, "report_to").outcome is Outcome.TAKEN
    assert config.report_to == "wandb"
    assert outcome(result, "cutoff_len").outcome is Outcome.TAKEN
    assert outcome(result, "lora_rank").settings == {"lora_r": 16}


def test_an_axolotl_file_keeps_its_meaning(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"question": "a", "answer": "b"}\n')
    result = imported(AXOLOTL, tmp_path)
    config = result.config()
    assert result.programs == ("axolotl",)
    assert (config.method, config.quantization, config.target_modules) == ("qlora", "4bit", "all-linear")
    assert (config.data, config.columns) == (str(tmp_path / "rows.jsonl"), "instruction=question, output=answer")
    assert (config.packing, config.optimizer, config.epochs, config.learning_rate) == (
        "packed",
        "paged_adamw_8bit",
        2,
        2e-4,
    )
    assert (config.save_steps, config.eval_steps) == (0.25, 0.125)  # shares of both epochs
    assert imported(AXOLOTL | {"saves_per_epoch": 1}).config().save_strategy == "epoch"
    assert outcome(result, "liger_rope").outcome is Outcome.UNSUPPORTED
    assert (config.report_to, config.report_project) == ("wandb", "tests")


@table("values", [LLAMAFACTORY, AXOLOTL])
def test_every_key_has_an_entry(values):
    assert {entry.key for entry in imported(values).entries} >= values.keys()


def test_a_programs_default_counts_where_lathe_has_another():
    config = imported({"finetuning_type": "lora", "model_name_or_path": "m"}).config()
    assert (config.lora_r, config.lora_alpha, config.max_length, config.learning_rate) == (8, 16, 2048, 5e-5)
    assert (config.micro_batch_size, config.warmup, config.gradient_checkpointing) == (8, 0, "full")
    assert imported({"base_model": "m"}).config().method == "full"


@table("values", [{"finetuning_type": "lora", "model_name_or_path": "m"}, {"base_model": "m", "adapter": "lora"}])
def test_a_key_without_a_value_is_as_one_that_is_not_given(values):
    program = recognized(values)
    usual = imported(values).settings
    differing = {
        key for key in program.table.keys() - values.keys() if imported(values | {key: None}).settings != usual
    }
    assert differing == set()


@table(
    ("values", "warmup"),
    [
        ({"warmup_ratio": 0.1, "warmup_steps": 0}, 0.1),
        ({"warmup_ratio": 0.1, "warmup_steps": 20}, 20),
        ({"warmup_ratio": 0.0, "warmup_steps": 0}, 0),
        ({"warmup_ratio": 0.1, "warmup_steps": None}, 0.1),
    ],
)
def test_the_steps_of_the_warmup_count_unless_they_are_0(values, warmup):
    for program in (LLAMAFACTORY, AXOLOTL):
        for order in (values, dict(reversed(values.items()))):
            text = yaml.safe_dump(program | order, sort_keys=False)
            assert import_text(text, None).config().warmup == warmup


def test_keys_without_a_rule_are_not_supported_and_close_ones_are_named():
    result = imported(LLAMAFACTORY | {"cutof_len": 5, "moon_phase": "full", "moon_size": None})
    assert "Did you mean cutoff_len?" in outcome(result, "cutof_len").note
    assert outcome(result, "moon_phase").outcome is Outcome.UNSUPPORTED
    assert outcome(result, "moon_size").outcome is Outcome.NO_EFFECT


def test_trackers_that_lathe_has_are_taken_and_others_are_named():
    result = imported(LLAMAFACTORY | {"report_to": ["wandb", "comet_ml", "mlflow"]})
    assert result.config().report_to == "wandb, mlflow"
    assert outcome(result, "report_to").note == "Lathe does not report to comet_ml."
    assert imported(LLAMAFACTORY | {"report_to": "none"}).config().report_to is None
    assert outcome(imported(LLAMAFACTORY | {"report_to": "all"}), "report_to").outcome is Outcome.NO_EFFECT
    assert imported(AXOLOTL | {"use_tensorboard": True, "use_wandb": False}).config().report_to == "tensorboard"


def test_a_value_that_lathe_refuses_is_reported_and_left_out():
    result = imported(LLAMAFACTORY | {"lora_rank": 99999, "optim": "adamw_of_tomorrow"})
    assert outcome(result, "lora_rank").outcome is Outcome.UNSUPPORTED
    assert "1024" in outcome(result, "lora_rank").note
    assert "adamw is the nearest" in outcome(result, "optim").note
    assert (result.config().lora_r, result.config().optimizer) == (16, "adamw")


def test_a_deepspeed_file_that_is_named_gives_strategy_and_offload(tmp_path):
    deepspeed = {"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}}, "gradient_clipping": 0.5}
    (tmp_path / "zero3.json").write_text(json.dumps(deepspeed))
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "run.yaml").write_text(yaml.safe_dump(LLAMAFACTORY | {"deepspeed": "zero3.json"}))
    config = import_files([tmp_path / "runs" / "run.yaml"]).config()
    assert (config.strategy, config.offload_optimizer, config.max_grad_norm) == ("zero3", "cpu", 0.5)


def test_several_files_make_one_run(tmp_path):
    files = {
        "run.yaml": LLAMAFACTORY,
        "accelerate.yaml": {
            "distributed_type": "FSDP",
            "num_processes": 4,
            "fsdp_config": {"fsdp_offload_params": True},
        },
        "adapter_config.json": {
            "peft_type": "LORA",
            "r": 64,
            "lora_alpha": 16,
            "target_modules": ["k_proj"],
            "bias": "none",
        },
    }
    for name, values in files.items():
        (tmp_path / name).write_text(json.dumps(values))
    result = import_files([tmp_path / name for name in files])
    config = result.config()
    assert result.programs == ("LLaMA-Factory", "accelerate", "PEFT")
    assert (config.strategy, config.num_processes, config.offload_param) == ("fsdp", 4, "cpu")
    assert (config.lora_r, config.target_modules, config.max_length) == (64, "k_proj", 4096)


def test_the_flags_of_a_command_are_read():
    command = """#!/bin/bash
    accelerate launch --num_processes 2 sft.py \\
        --model_name_or_path Qwen/Qwen3-0.6B --learning_rate 2e-5 --use_peft --lora_target_modules q_proj v_proj \\
        --gradient_checkpointing=false --max_length 512
    """
    result = import_text(command, None)
    config = result.config()
    assert result.programs == ("transformers and trl",)
    assert (config.model, config.learning_rate, config.method) == ("Qwen/Qwen3-0.6B", 2e-5, "lora")
    assert (config.target_modules, config.gradient_checkpointing, config.max_length) == ("q_proj,v_proj", "none", 512)


def test_dataset_info_gives_file_and_columns(tmp_path):
    described = {
        "mine": {
            "file_name": "mine.json",
            "formatting": "alpaca",
            "columns": {"prompt": "question", "response": "answer"},
        }
    }
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "dataset_info.json").write_text(
        json.dumps(described | {"theirs": {"hf_hub_url": "owner/theirs"}})
    )
    result = imported(LLAMAFACTORY | {"dataset": "mine,theirs"}, tmp_path)
    assert result.config().data == str(tmp_path / "data" / "mine.json")
    assert result.config().columns == "instruction=question, output=answer"
    note = outcome(result, "dataset").note
    assert "the data set owner/theirs is on the hub" in note and "Training leaves it out." in note
    on_hub = outcome(imported(LLAMAFACTORY | {"dataset": "theirs"}, tmp_path), "dataset")
    assert (on_hub.outcome, "the data set owner/theirs is on the hub" in on_hub.note) == (Outcome.UNSUPPORTED, True)


def test_interleaved_data_sets_have_their_weights_caps_and_columns(tmp_path):
    described = {
        "plain": {"file_name": "plain.json", "num_samples": 500},
        "mapped": {"file_name": "mapped.json", "columns": {"prompt": "question", "response": "answer"}},
    }
    (tmp_path / "dataset_info.json").write_text(json.dumps(described))
    mixed = {"dataset": "plain,mapped", "mix_strategy": "interleave_over", "interleave_probs": "0.7,0.3"}
    config = imported(LLAMAFACTORY | mixed, tmp_path).config()
    plain, mapped = config.sources
    assert (Path(plain.path).name, plain.weight, plain.max_rows, plain.columns) == ("plain.json", 0.7, 500, None)
    columns = "instruction=question, output=answer"
    assert (Path(mapped.path).name, mapped.weight, mapped.columns) == ("mapped.json", 0.3, columns)
    assert (config.mix_until, config.columns) == ("all_exhausted", None)
    together = imported(LLAMAFACTORY | {"dataset": ["plain", "mapped"], "mix_strategy": "concat"}, tmp_path).config()
    assert len(together.sources) == 2 and not together.mixes


def test_every_data_set_of_axolotl_is_taken(tmp_path):
    for name in ("rows", "chat", "held_out"):
        (tmp_path / f"{name}.jsonl").write_text("{}")
    listed = [
        {"path": "rows.jsonl", "type": {"field_instruction": "question", "field_output": "answer"}},
        {"path": "json", "data_files": ["chat.jsonl"], "type": "chat_template"},
    ]
    more = {"datasets": listed, "test_datasets": [{"path": "held_out.jsonl", "type": "alpaca"}]}
    config = imported(AXOLOTL | more, tmp_path).config()
    assert [Path(source.path).name for source in config.sources] == ["rows.jsonl", "chat.jsonl"]
    assert [source.columns for source in config.sources] == ["instruction=question, output=answer", None]
    assert Path(config.validation_data).name == "held_out.jsonl"


@table("text", ['{"train_batch_size": 64, "steps_per_print": 10}', '{"train_micro_batch_size_per_gpu": 8}'])
def test_a_deepspeed_json_without_a_zero_section_is_stage_0(text):
    result = import_text(text, None)
    assert (result.programs, result.settings["strategy"]) == (("DeepSpeed",), "zero0")


def test_without_a_folder_no_file_is_read(tmp_path):
    secret = tmp_path / "zero3.json"
    secret.write_text(json.dumps({"zero_optimization": {"stage": 3}}))
    result = imported(LLAMAFACTORY | {"deepspeed": str(secret), "dataset": str(secret)})
    assert result.config().strategy == "single"
    assert outcome(result, "dataset").outcome is Outcome.UNSUPPORTED


@table("text", ["", "hello", "[1, 2]", "a: b: c", "model: m\ndata: d\nlora_r: 8\n", "null"])
def test_a_text_of_no_known_program_is_refused(text):
    with pytest.raises(UserError, match=r"configuration of|not valid YAML"):
        import_text(text, None, "pasted")


@table(
    "more",
    [
        {"pissa_init": True, "pissa_iter": [1]},
        {"deepspeed": "x" * 5000},
        {"deepspeed": "{broken"},
        {"dataset": ["x" * 5000]},
        {"learning_rate": float("nan"), "max_steps": float("inf")},
    ],
)
def test_strange_values_are_answered(more, tmp_path):
    json.dumps(imported(LLAMAFACTORY | more, tmp_path).document(), allow_nan=False)


def test_a_broken_flag_and_a_strange_yaml_value_are_text():
    assert outcome(import_text("train --model_name_or_path m --moon=[ --sun={", None), "moon").value == "["
    document = import_text("base_model: m\nnight: 2026-01-02\nsize: .nan\n", None).document()
    assert {"2026-01-02", "nan"} <= {one["value"] for one in document["keys"] if isinstance(one["value"], str)}


def test_a_deepspeed_json_in_a_command_is_read():
    command = 'train.py --model_name_or_path m --deepspeed \'{"zero_optimization": {"stage": 2}}\''
    assert import_text(command, None).config().strategy == "zero2"


def test_aliases_are_replaced_by_what_they_stand_for():
    text = "base_model: m\nusual: &usual 5\nmicro_batch_size: *usual\n"
    assert import_text(text, None).config().micro_batch_size == 5


def test_nested_aliases_and_deep_nesting_are_refused():
    bomb = "a: &a [x, x]\n" + "".join(
        f"{two}: &{two} [{', '.join(['*' + one] * 9)}]\n" for one, two in zip("abcdefgh", "bcdefghi", strict=True)
    )
    for text in (f"cutoff_len: 5\n{bomb}", "cutoff_len: " + "[" * 5000):
        with pytest.raises(UserError, match=r"expand to|nesting"):
            import_text(text, None, "pasted")


@table("value", [None, True, 0, -1, 1.5, "", "auto", "x" * 50, [], [1, "a"], {}, {"a": None}, [{}]])
@table("program", PROGRAMS)
@pytest.mark.slow
def test_no_value_of_any_key_crashes(program, value):
    starts = {"DeepSpeed": "zero_optimization", "accelerate": "distributed_type", "PEFT": "peft_type", "axolotl": "base_model",
              "LLaMA-Factory": "finetuning_type", "transformers and trl": "model_name_or_path", "FSDP": "fsdp_offload_params",
              "ms-swift": "tuner_type", "MedicalGPT": "tool_format", "Oumi": "model.model_name",
              "torchtune": "model._component_", "Firefly": "train_mode"}  # fmt: skip
    more = {"MedicalGPT": {"train_file_dir": "d"}, "Firefly": {"train_file": "d", "max_seq_length": 8}}
    if program.name == "Unsloth":
        return  # which has no file of keys
    keys = [*program.table, *program.prefixes, "deepspeed", "fsdp_config", "dataset", "datasets"]
    start = more.get(program.name, {}) | {starts[program.name]: "lora"}
    for added in [dict.fromkeys(keys, value), *({key: value} for key in keys if value == {"a": None})]:
        try:
            imported(start | added).config()
        except UserError as error:
            assert "not a configuration" in str(error) or program.name == "PEFT" or error.problem.field == "task"


def test_keys_about_chats_keep_their_meaning(tmp_path):
    (tmp_path / "chat.jsonl").write_text("{}")
    marked = {
        "path": "chat.jsonl",
        "type": "chat_template",
        "message_field_training": "learn",
        "roles_to_train": ["assistant"],
    }
    more = {"datasets": [marked], "chat_template": "jinja", "chat_template_jinja": "{{ messages }}"}
    config = imported(AXOLOTL | more, tmp_path).config()
    assert (config.loss_on, config.loss_field, config.chat_template) == ("field", "learn", "{{ messages }}")
    result = imported(AXOLOTL | {"datasets": [marked | {"roles_to_train": ["user"], "train_on_eos": "last"}]}, tmp_path)
    assert "roles_to_train user" in outcome(result, "datasets").note
    assert "train_on_eos last" in outcome(result, "datasets").note

    result = imported(
        LLAMAFACTORY | {"stage": "sft", "mask_history": True, "enable_thinking": False, "template": "qwen3"}
    )
    assert (result.config().loss_on, result.config().chat_template_kwargs) == ("last", "enable_thinking=false")
    assert outcome(result, "template").outcome is Outcome.NO_EFFECT


def test_no_key_of_a_data_set_is_lost(tmp_path):
    (tmp_path / "sql.jsonl").write_text("{}")
    kind = {"field_instruction": "question", "field_output": "answer", "format": "[INST] {instruction} [/INST]"}
    described = {"path": "sql.jsonl", "ds_type": "json", "type": kind, "shards": 10, "moon": 1}
    for folder in (tmp_path, None):
        result = imported(AXOLOTL | {"datasets": [described]}, folder)
        assert result.settings["columns"] == "instruction=question, output=answer"
        outcomes = {one.key: one.outcome for one in result.entries}
        assert outcomes["datasets[0].type.format"] is outcomes["datasets[0].shards"] is Outcome.UNSUPPORTED
        assert (outcomes["datasets[0].moon"], outcomes["datasets[0].ds_type"]) == (
            Outcome.UNSUPPORTED,
            Outcome.NO_EFFECT,
        )
        assert "chat_template" in outcome(result, "datasets[0].type.format").note


def test_a_format_of_axolotl_is_named():
    assert (
        "alpaca is a format"
        in outcome(imported(AXOLOTL | {"datasets": [{"path": "o/d", "type": "alpaca"}]}), "datasets").note
    )
