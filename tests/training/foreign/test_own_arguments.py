"""A command's script that is here says what its flags mean: its parser's defaults, its calls, its trainer."""

import pytest
from subtest_table import table

from training.errors import UserError
from training.foreign.translate import import_files, import_text

ARGPARSE = """
import argparse
from transformers import Trainer, TrainingArguments
from peft import LoraConfig
parser = argparse.ArgumentParser()
parser.add_argument("--base", required=True)
parser.add_argument("-l", "--lr", type=float, default=3e-4)
parser.add_argument("--cutoff-len", type=int, default=256)
parser.add_argument("--four-bits", action="store_true")
parser.add_argument("--rows", dest="batch", type=int, default=2)
options = parser.parse_args()
model = AutoModelForCausalLM.from_pretrained(options.base)
if options.four_bits:
    quantized = BitsAndBytesConfig(load_in_4bit=True)
else:
    other = BitsAndBytesConfig(load_in_8bit=options.four_bits)
peft_config = LoraConfig(r=4, lora_alpha=2 * 4)
arguments = TrainingArguments(learning_rate=options.lr, per_device_train_batch_size=options.batch, num_train_epochs=2)
Trainer(model=model, args=arguments, max_seq_length=options.cutoff_len)
"""
DATACLASSES = """
from dataclasses import dataclass, field
from transformers import HfArgumentParser
from trl import DPOConfig, DPOTrainer
@dataclass
class Mine(DPOConfig):
    learning_rate: float = field(default=7e-7)
    beta: float = 0.4
    loss_type: list[str] = field(default_factory=lambda: ["ipo"])
    moon: str = "x"
    run_name: str = field()
(mine,) = HfArgumentParser((Mine,)).parse_args_into_dataclasses()
DPOTrainer("m", args=mine, max_length=96)
"""


def imported(tmp_path, script, command, name="work/go.py"):
    (tmp_path / "work").mkdir()
    (tmp_path / name).write_text(script)
    (tmp_path / "run.sh").write_text(command)
    return import_files([tmp_path / "run.sh"])


@table(
    ("flags", "expected"),
    [
        ("", {"learning_rate": 3e-4, "micro_batch_size": 2, "max_length": 256, "method": "lora", "lora_r": 4, "lora_alpha": 8}),
        ("--lr 1e-5 --rows 6 --cutoff-len 64", {"learning_rate": 1e-5, "max_length": 64, "epochs": 2}),
        ("--four-bits", {"method": "qlora", "quantization": "4bit"}),
    ],
)  # fmt: skip
def test_flags_mean_what_the_calls_of_the_script_make_of_them(tmp_path_factory, flags, expected):
    result = imported(tmp_path_factory.mktemp("own"), ARGPARSE, f"python work/go.py --base o/m {flags}")
    config = result.config()
    assert config.model == "o/m"
    assert {name: getattr(config, name) for name in expected} == expected


def test_fields_of_dataclasses_and_the_trainer_are_the_scripts(tmp_path):
    result = imported(
        tmp_path, DATACLASSES, "torchrun --nproc_per_node 2 work/go.py --per_device_train_batch_size 3 --beta 0.2"
    )
    config = result.config()
    assert (config.task, config.dpo_loss, config.beta, config.learning_rate) == ("dpo", "ipo", 0.2, 7e-7)
    assert (config.max_length, config.micro_batch_size, config.num_processes) == (96, 3, 2)
    assert not any(one.key == "moon" for one in result.entries)


def test_a_script_of_generated_answers_is_refused_by_its_trainer(tmp_path):
    script = DATACLASSES.replace("DPOTrainer", "GRPOTrainer").replace("DPOConfig", "GRPOConfig")
    with pytest.raises(UserError, match="GRPO"):
        imported(tmp_path, script, "python work/go.py --learning_rate 1e-6 --model_name_or_path m")


@table(
    ("script", "command"),
    [
        ("from trl import SFTTrainer\n)", "python work/go.py --model_name_or_path m"),
        ("import this", "python work/go.py --model_name_or_path m"),
        (DATACLASSES, "python elsewhere.py --model_name_or_path m"),
    ],
)
def test_a_script_that_is_not_read_may_have_other_defaults(tmp_path_factory, script, command):
    result = imported(tmp_path_factory.mktemp("own"), script, command)
    assert result.config().task == "sft"
    note = next(one.note for one in result.entries if one.key == "learning_rate")
    assert command.split()[1] in note and "may have its own" in note


def test_defaults_of_known_programs_are_certain():
    text = "python run_clm.py --model_name_or_path m --train_file d.txt --do_train"
    assert import_text(text, None).config().eval_split == 0.05
    assert import_text(f"{text} --validation_file v.txt", None).config().eval_split == 0
    assert not any("may have its own" in one.note for one in import_text(text, None).entries)


def test_constants_that_double_and_nest_end():
    doubled = "".join(f"a{n + 1} = a{n} * a{n}\nb{n + 1} = f(b{n}, b{n}, b{n})\n" for n in range(60))
    text = ARGPARSE.replace("default=3e-4", "default=a19 == b60").replace(
        "options =", f"a0 = b0 = 1\n{doubled}options ="
    )
    assert import_text(text, None).config().method == "lora"


def test_a_script_by_itself_has_its_parsers_defaults():
    config = import_text(ARGPARSE, None).config()
    assert (config.learning_rate, config.micro_batch_size, config.method) == (3e-4, 2, "lora")
