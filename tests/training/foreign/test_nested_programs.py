"""torchtune's and Oumi's configurations have sections; their keys become settings."""

import json

import pytest
from subtest_table import table

from training.errors import UserError
from training.foreign.entries import Outcome
from training.foreign.translate import import_files, import_text

TORCHTUNE = """
output_dir: /tmp/out
base: /tmp/Llama-3.2-1B
model:
  _component_: torchtune.models.llama3_2.lora_llama3_2_1b
  lora_attn_modules: ['q_proj', 'output_proj']
  apply_lora_to_mlp: True
  lora_rank: 64
  lora_alpha: 128
tokenizer: {_component_: torchtune.models.llama3.llama3_tokenizer, path: "${base}/tokenizer.model", max_seq_len: 2048}
checkpointer: {_component_: torchtune.training.FullModelHFCheckpointer, checkpoint_dir: "${base}", model_type: LLAMA3_2}
dataset: {_component_: torchtune.datasets.alpaca_cleaned_dataset, packed: False}
optimizer: {_component_: torch.optim.AdamW, fused: True, weight_decay: 0.05, lr: 3e-4}
lr_scheduler: {_component_: torchtune.training.lr_schedulers.get_cosine_schedule_with_warmup, num_warmup_steps: 100}
loss: {_component_: torchtune.modules.loss.LinearCrossEntropyLoss}
batch_size: 4
epochs: 2
max_steps_per_epoch: 50
gradient_accumulation_steps: 8
clip_grad_norm: null
dtype: bf16
enable_activation_checkpointing: False
"""
OUMI = """
model: {model_name: "o/m", model_max_length: 2048, torch_dtype_str: "bfloat16", attn_implementation: "sdpa"}
data: {train: {datasets: [{dataset_name: "yahma/alpaca-cleaned"}], pack: true}}
training:
  trainer_type: "TRL_SFT"
  use_peft: True
  per_device_train_batch_size: 2
  gradient_accumulation_steps: 4
  learning_rate: 3.0e-04
  lr_scheduler_type: "cosine"
  warmup_steps: 100
  enable_gradient_checkpointing: True
  moon: 1
peft: {q_lora: True, lora_alpha: 32, lora_target_modules: ["q_proj", "v_proj"]}
fsdp: {enable_fsdp: True, forward_prefetch: True}
"""


def outcomes(result):
    return {one.key: one.outcome for one in result.entries}


def test_a_torchtune_file_keeps_its_meaning():
    result = import_text(TORCHTUNE, None)
    config = result.config()
    assert (result.programs, config.model, config.method) == (("torchtune",), "/tmp/Llama-3.2-1B", "lora")
    assert (config.lora_r, config.lora_alpha) == (64, 128)
    assert config.target_modules == "q_proj,o_proj,gate_proj,up_proj,down_proj"
    assert (config.max_length, config.micro_batch_size, config.gradient_accumulation_steps) == (2048, 4, 8)
    assert (config.max_steps, config.learning_rate, config.lr_scheduler, config.warmup) == (100, 3e-4, "cosine", 100)
    assert (config.max_grad_norm, config.eval_split, config.train_on_prompt) == (0, 0, True)
    assert outcomes(result)["output_dir"] is Outcome.NO_EFFECT


@table(
    ("change", "expected"),
    [
        (("lora_llama3_2_1b", "qlora_llama3_2_1b"), {"method": "qlora", "quantization": "4bit"}),
        (("modules.loss.LinearCrossEntropyLoss", "rlhf.loss.DPOLoss"), {"task": "dpo"}),
        (("alpaca_cleaned_dataset", "text_completion_dataset"), {"task": "pretraining", "train_on_prompt": False}),
        (("torch.optim.AdamW", "bitsandbytes.optim.PagedAdamW8bit"), {"optimizer": "paged_adamw_8bit"}),
    ],
)
def test_components_of_torchtune_say_method_task_and_optimizer(change, expected):
    config = import_text(TORCHTUNE.replace(*change), None).config()
    assert {name: getattr(config, name) for name in expected} == expected


@table(
    ("train", "rest", "share"),
    [
        ("train[:95%]", "train[95%:]", 0.05),
        ("train", "test", 0),
        ("train[:95%]", "test", None),
        ("train[:1%]", "x", None),
    ],
)
def test_a_part_of_the_rows_is_held_out_or_named(train, rest, share):
    text = TORCHTUNE.replace("dataset: {", f"dataset_val: {{split: '{rest}'}}\ndataset: {{split: '{train}', ")
    result = import_text(text, None)
    assert result.config().eval_split == (share or 0)
    assert (outcomes(result)["dataset.split"] is Outcome.UNSUPPORTED) == (share is None)


def test_tune_run_gives_processes_and_overrides(tmp_path):
    (tmp_path / "c.yaml").write_text(TORCHTUNE)
    script = tmp_path / "run.sh"
    script.write_text(
        "tune run --nproc_per_node 4 lora_finetune_distributed --config c.yaml optimizer.lr=1e-5 batch_size=2"
    )
    config = import_files([script]).config()
    assert (config.num_processes, config.strategy, config.learning_rate, config.micro_batch_size) == (
        4,
        "fsdp",
        1e-5,
        2,
    )
    single = import_text("tune run lora_finetune_single_device --config llama3/8B_lora", None)
    assert single.config().strategy == "single"
    assert "is not here" in next(one for one in single.entries if one.value == "llama3/8B_lora").note


def test_an_oumi_file_keeps_its_meaning():
    result = import_text(OUMI, None)
    config = result.config()
    assert (result.programs, config.model, config.method, config.quantization) == (("Oumi",), "o/m", "qlora", "4bit")
    assert (config.lora_r, config.lora_alpha, config.target_modules) == (8, 32, "q_proj,v_proj")
    assert (config.max_length, config.packing, config.strategy, config.eval_split) == (2048, "packed", "fsdp", 0)
    assert (config.micro_batch_size, config.gradient_accumulation_steps, config.learning_rate) == (2, 4, 3e-4)
    assert (config.lr_scheduler, config.warmup, config.gradient_checkpointing) == ("cosine", 100, "full")
    unknown = next(one for one in result.entries if one.key.endswith(".moon"))
    assert unknown.outcome is outcomes(result)["data.train.datasets"] is Outcome.UNSUPPORTED


@table(
    ("command", "processes"),
    [("oumi train -c c.yaml", 1), ("oumi distributed torchrun --nproc-per-node 4 -m oumi train -c c.yaml", 4)],
)
def test_oumi_is_started_by_itself_or_torchrun(command, processes, tmp_path):
    (tmp_path / "c.yaml").write_text(OUMI)
    script = tmp_path / "run.sh"
    script.write_text(f"{command} --training.max_steps 10 --training.learning_rate=1e-6")
    config = import_files([script]).config()
    assert (config.max_steps, config.learning_rate, config.num_processes) == (10, 1e-6, processes)


@table(
    "text",
    [
        OUMI.replace("TRL_SFT", "TRL_GRPO"),
        OUMI.replace("TRL_SFT", "TRL_GKD"),
        TORCHTUNE + "kd_loss: {_component_: torchtune.modules.loss.ForwardKLLoss}\n",
        TORCHTUNE.replace("modules.loss.LinearCrossEntropyLoss", "rlhf.loss.PPOLoss"),
    ],
)
def test_tasks_that_lathe_does_not_train_are_refused(text):
    with pytest.raises(UserError, match="Lathe has no"):
        import_text(text, None)


def test_references_that_lead_nowhere_or_in_a_circle_end():
    text = TORCHTUNE.replace("base: /tmp/Llama-3.2-1B", "base: ${base}").replace("lr: 3e-4", "lr: '${rate}'")
    result = import_text(text, None)
    json.dumps(result.document(), allow_nan=False)
    assert "refers to rate" in next(one for one in result.entries if one.key == "optimizer.lr").note
