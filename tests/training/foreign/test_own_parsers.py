"""What trl's and accelerate's own parsers make of a command is what Lathe makes of it."""

import shlex

import pytest
from subtest_table import table

from training.foreign.shell_text import read
from training.foreign.translate import import_text

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
COMMANDS = (
    "trl sft --model_name_or_path m --dataset_name d",
    "trl sft --model_name_or_path m --learning-rate 1e-3 --packing --no_gradient_checkpointing --max_length 64 --use_peft",
    "trl sft --model_name_or_path m --gradient_checkpointing=false --lora_r 4 --per_device_train_batch_size=3 --warmup_steps 7",
    "trl sft --model_name_or_path m --use_peft True --lora_target_modules q_proj v_proj --load_in_4bit --num_train_epochs 0.5",
    "trl dpo --model_name_or_path m --beta 0.05 --loss_type hinge --gradient_accumulation_steps 4 --lr_scheduler_type cosine",
    "trl dpo --model_name_or_path 'a b/m' --max_steps -1 --use_peft --lora_alpha 8 --lora_dropout 0.2 --max_grad_norm 0.3",
    "trl kto --model_name_or_path m --desirable_weight 0.7 --max_steps 20 --weight_decay 0.1 --use_peft --use_rslora",
    "trl reward --model_name_or_path m --learning_rate 3e-6 --optim adafactor --seed 7 --save_steps 0.5",
)
SAME = {
    "model_name_or_path": "model", "learning_rate": "learning_rate", "num_train_epochs": "epochs", "seed": "seed",
    "per_device_train_batch_size": "micro_batch_size", "gradient_accumulation_steps": "gradient_accumulation_steps",
    "weight_decay": "weight_decay", "max_grad_norm": "max_grad_norm", "max_length": "max_length", "logging_steps": "logging_steps",
    "save_steps": "save_steps", "adam_beta2": "adam_beta2", "beta": "beta", "desirable_weight": "desirable_weight",
}  # fmt: skip
OF_LORA = {"lora_r": "lora_r", "lora_alpha": "lora_alpha", "lora_dropout": "lora_dropout", "use_rslora": "use_rslora"}


def resolved(command):
    """The arguments as trl's own parser of this task resolves them."""
    import importlib

    _, task, *words = read(command).commands[0].words
    parser = importlib.import_module(f"trl.scripts.{task}").make_parser()
    values = {}
    for part in parser.parse_args_and_config([*words, "--use_cpu"]):  # or it asks for a GPU with bf16
        values |= vars(part)
    return task, values


@table("command", COMMANDS)
def test_trl_resolves_a_command_as_lathe_does(command):
    task, values = resolved(command)
    config = import_text(command, None).config()
    assert config.task == task
    expected = {setting: values[name] for name, setting in SAME.items() if name in values}
    if values["use_peft"]:
        expected |= {setting: values[name] for name, setting in OF_LORA.items()}
        expected["method"] = "qlora" if values["load_in_4bit"] else "lora"
        expected["target_modules"] = ",".join(values["lora_target_modules"] or ["auto"])
    else:
        expected["method"] = "full"
    expected["max_steps"] = values["max_steps"] if values["max_steps"] > 0 else None
    expected["gradient_checkpointing"] = "full" if values["gradient_checkpointing"] else "none"
    expected["warmup"] = values["warmup_steps"]
    expected["lr_scheduler"] = values["lr_scheduler_type"].value
    assert {name: getattr(config, name) for name in expected} == expected
    assert values["eval_strategy"].value == "no" and config.eval_split == 0


@table(
    "options",
    [
        "--num_processes 4 --mixed_precision bf16 --multi_gpu",
        "--num-processes=8 --use_deepspeed --zero_stage 3 --gradient_accumulation_steps 2",
        "--num_machines 2 --num_processes 16 --use_fsdp --dynamo_backend no",
        "--quiet --num_processes 2 --main_process_port 29501 --gpu_ids all -m",
    ],
)
def test_accelerate_finds_script_and_processes_where_lathe_does(options):
    from accelerate.commands.launch import launch_command_parser

    from training.foreign.launchers import launches

    command = f"accelerate launch {options} train.py --model_name_or_path m --num_processes_of_data 3"
    parsed = launch_command_parser().parse_args(shlex.split(command)[2:])
    launch = launches(read(command), frozenset())[0]
    assert (launch.target, launch.arguments) == (parsed.training_script, parsed.training_script_args)
    config = import_text(command, None).config()
    assert (config.num_processes, config.num_machines) == (parsed.num_processes, parsed.num_machines or 1)
    stage = {True: f"zero{parsed.zero_stage or 2}", False: "fsdp" if parsed.use_fsdp else "ddp"}[parsed.use_deepspeed]
    assert config.strategy == stage
