"""Python scripts and notebooks that train with Unsloth or trl are read, not executed."""

import json

import pytest
from subtest_table import table

from training.errors import UserError
from training.foreign.translate import import_text

UNSLOTH = (
    """
%%capture
""".strip()
    + """
from unsloth import FastLanguageModel, is_bfloat16_supported
from trl import SFTTrainer
LENGTH = 2048
model, tokenizer = FastLanguageModel.from_pretrained(model_name="unsloth/Qwen3-4B", max_seq_length=LENGTH, load_in_4bit=True)
model = FastLanguageModel.get_peft_model(model, r=32, target_modules=["q_proj", "k_proj"], lora_alpha=2 * 32, random_state=3407)
trainer = SFTTrainer(
    model=model, tokenizer=tokenizer, train_dataset=load_dataset("o/d", split="train"), dataset_text_field="text", packing=False,
    args=TrainingArguments(per_device_train_batch_size=2, gradient_accumulation_steps=4, max_steps=60, learning_rate=2e-4,
                           bf16=is_bfloat16_supported(), fp16=not is_bfloat16_supported(), optim="adamw_8bit", seed=args.seed),
)
"""
)
TRL = """
import torch
from trl import DPOConfig, DPOTrainer
from peft import LoraConfig
model = AutoModelForCausalLM.from_pretrained("o/m", torch_dtype=torch.bfloat16)
peft_config = LoraConfig(r=8, lora_dropout=0.1, bias="none", task_type="CAUSAL_LM")
training_args = DPOConfig(output_dir=out, beta=0.3, num_train_epochs=1, per_device_train_batch_size=1)
split = data.train_test_split(test_size=0.1)
DPOTrainer(model, args=training_args, train_dataset=split["train"], peft_config=peft_config).train()
"""


def test_a_script_of_unsloth_keeps_its_meaning():
    result = import_text(UNSLOTH.removeprefix("%%capture"), None)
    config = result.config()
    assert (result.programs, config.model, config.task, config.method) == (
        ("Unsloth",),
        "unsloth/Qwen3-4B",
        "sft",
        "qlora",
    )
    assert (config.lora_r, config.lora_alpha, config.target_modules) == (32, 64, "q_proj,k_proj")
    assert (config.max_length, config.global_batch_size, config.max_steps) == (2048, 8, 60)
    assert (config.learning_rate, config.optimizer, config.eval_split) == (2e-4, "adamw_8bit", 0)
    assert config.gradient_checkpointing == "offloaded"
    assert next(one for one in result.entries if one.key == "seed").note == "is computed by the script."


def test_a_script_of_trl_keeps_its_meaning():
    config = import_text(TRL, None).config()
    assert (config.task, config.model, config.method, config.beta) == ("dpo", "o/m", "lora", 0.3)
    assert (config.lora_r, config.lora_alpha, config.lora_dropout) == (8, 8, 0.1)
    assert (config.learning_rate, config.eval_split, config.epochs) == (1e-6, 0.1, 1)


@table(
    ("change", "expected"),
    [
        (("LoraConfig(", "dict("), {"method": "full"}),
        (("DPOConfig", "TrainingArguments"), {"learning_rate": 5e-5, "gradient_checkpointing": "none"}),
        (("DPOTrainer(", "KTOTrainer("), {"task": "kto"}),
        (("DPOTrainer(", "RewardTrainer("), {"task": "reward"}),
        (("DPOTrainer(", "MyKTOTrainer("), {"task": "kto"}),
        (("DPOConfig(", "DPOConfig(max_length=1024 // 2, "), {"max_length": 1024}),
    ],
)
def test_calls_say_task_method_and_defaults(change, expected):
    config = import_text(TRL.replace(*change), None).config()
    assert {name: getattr(config, name) for name in expected} == expected


def test_training_by_generated_answers_is_refused():
    with pytest.raises(UserError, match="Lathe has no training by generated answers"):
        import_text(TRL.replace("DPOTrainer", "GRPOTrainer"), None)


def test_a_notebook_is_its_code():
    lines = UNSLOTH.removeprefix("%%capture").splitlines(keepends=True)
    cells = [{"cell_type": "code", "source": ["%%capture\n", "!pip install unsloth"]}, {"cell_type": "markdown", "source": "SFT"},
             {"cell_type": "code", "source": lines}]  # fmt: skip
    result = import_text(json.dumps({"cells": cells, "nbformat": 4}), None)
    assert (result.programs, result.config().lora_r) == (("Unsloth",), 32)


@table("broken", ["x = (", "1+" * 50_000 + "1", "-" * 90_000 + "1", "a" + ".a" * 50_000, "\0", "x" * 200_001])
def test_what_cannot_be_read_is_refused(broken):
    with pytest.raises(UserError, match="is not read"):
        import_text(f"{TRL}\n{broken}", None)


def test_nothing_of_a_script_is_executed(tmp_path):
    target = tmp_path / "file"
    text = TRL.replace("beta=0.3", f"beta=open({str(target)!r}, 'w').write('x')")
    assert "beta" not in import_text(text, None).settings
    assert not target.exists()


def test_a_notebook_that_starts_a_script_is_its_command():
    command = [
        "!torchrun --nproc_per_node 2 finetune.py \\\n",
        "    --model_name_or_path m \\\n",
        "    --learning_rate 1e-5",
    ]
    cells = [{"cell_type": "code", "source": ["import torch\n", "x = 1"]}, {"cell_type": "code", "source": command}]
    config = import_text(json.dumps({"cells": cells}), None).config()
    assert (config.num_processes, config.learning_rate, config.method) == (2, 1e-5, "full")


def test_a_script_whose_arguments_are_given_at_its_start_has_no_defaults():
    parsed = TRL.replace("training_args = DPOConfig(", "training_args = parser.parse(")
    result = import_text(parsed, None)
    assert (result.config().task, result.config().lora_r) == ("dpo", 8)
    assert "learning_rate" not in result.settings
    assert "Import that command" in next(one for one in result.entries if one.key == "arguments").note
    assert "learning_rate" not in import_text(TRL.replace("beta=0.3", "**more"), None).settings


def test_the_name_of_a_script_says_the_task_where_its_calls_do_not():
    text = "from transformers import Trainer\nTrainer(model=AutoModelForCausalLM.from_pretrained('m'))\n"
    assert import_text(text, None, "examples/run_clm.py").config().task == "pretraining"
    assert import_text(text.replace("Trainer(", "SFTTrainer("), None, "run_clm.py").config().task == "sft"


def test_a_module_that_only_defines_a_trainer_is_refused():
    with pytest.raises(UserError, match="makes no trainer"):
        import_text("from transformers import Trainer\nclass Mine(Trainer):\n    pass\n", None)


@table(("model", "task"), [("AutoModelForCausalLM", "sft"), ("AutoModelForSeq2SeqLM", "seq2seq")])
def test_the_model_says_whether_a_seq2seq_trainer_trains_an_encoder_decoder(model, task):
    trainer = "Seq2SeqTrainer(args=TrainingArguments(num_train_epochs=1))"
    text = f"from transformers import Trainer\n{model}.from_pretrained('m')\n{trainer}\n"
    assert import_text(text, None).config().task == task
