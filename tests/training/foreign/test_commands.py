"""Training commands of other programs: launcher, program, task and method become those of the run."""

import json

import pytest
from subtest_table import table

from training.errors import UserError
from training.foreign.entries import Outcome
from training.foreign.translate import import_files, import_text

FLAGS = "--model_name_or_path m --dataset_name o/d --learning_rate 1e-5"
SWIFT = "--model m --dataset d.jsonl"


def of(text, name):
    return next(one for one in import_text(text, None).entries if one.key == name)


@table(
    ("command", "task"),
    [
        (f"trl sft {FLAGS}", "sft"),
        (f"trl dpo {FLAGS}", "dpo"),
        (f"trl kto {FLAGS}", "kto"),
        (f"trl reward {FLAGS}", "reward"),
        (f"accelerate launch trl/scripts/dpo.py {FLAGS}", "dpo"),
        (f"python -m trl.scripts.kto {FLAGS}", "kto"),
        (f"python examples/scripts/reward_modeling.py {FLAGS}", "reward"),
        (f"torchrun --nproc_per_node 2 scripts/run_orpo.py {FLAGS}", "orpo"),
        (f"deepspeed train_dpo.py {FLAGS} --model_max_length 512", "dpo"),
        (f"python run_clm.py {FLAGS} --block_size 512", "pretraining"),
        (f"swift sft {SWIFT}", "sft"),
        (f"swift pt {SWIFT}", "pretraining"),
        (f"swift rlhf --rlhf_type kto {SWIFT}", "kto"),
        (f"swift rlhf --rlhf_type rm {SWIFT}", "reward"),
        (f"swift rlhf {SWIFT}", "dpo"),
        (f"python swift/cli/rlhf.py --rlhf_type orpo {SWIFT}", "orpo"),
        ("llamafactory-cli train --stage dpo --model_name_or_path m --finetuning_type lora --pref_loss orpo", "orpo"),
        ("llamafactory-cli train --stage rm --model_name_or_path m --finetuning_type lora", "reward"),
        ("srun accelerate launch --num_processes 2 scripts/run_dpo.py elsewhere.yaml", "dpo"),
        (f"torchrun --nproc_per_node 2 $(which swift) rlhf {SWIFT}", "dpo"),
    ],
)
def test_the_task_is_what_the_command_says(command, task):
    assert import_text(command, None).config().task == task


@table(
    "command",
    [
        f"trl grpo {FLAGS} --reward_funcs accuracy_reward",
        f"trl rloo {FLAGS}",
        f"accelerate launch examples/scripts/ppo.py {FLAGS}",
        f"python grpo_training.py {FLAGS}",
        f"python train.py {FLAGS} --num_generations 8",
        f"swift rlhf --rlhf_type grpo {SWIFT}",
        f"swift rlhf --rlhf_type simpo {SWIFT}",
        f"swift sft --task_type embedding {SWIFT}",
        "llamafactory-cli train --stage ppo --model_name_or_path m --finetuning_type lora",
        "llamafactory-cli train --stage dpo --pref_loss simpo --model_name_or_path m --finetuning_type lora",
        f"python run_qa.py {FLAGS} --do_train",
        "accelerate launch scripts/run_cpo.py elsewhere.yaml",
        "base_model: m\nrl: grpo\n",
        "model_name_or_path: m\nnum_generations: 4\nmax_completion_length: 64\n",
    ],
)
def test_a_task_that_lathe_does_not_train_is_refused(command):
    with pytest.raises(UserError, match="Lathe has no"):
        import_text(command, None)


@table(
    "text",
    [
        "llamafactory-cli train --stage sft --do_predict --finetuning_type lora --model_name_or_path m",
        "model_name_or_path: m\nstage: sft\ntemplate: x\ncutoff_len: 64\ndo_predict: true\n",
        f"python run_clm.py {FLAGS} --do_eval",
    ],
)
def test_what_only_evaluates_is_refused(text):
    with pytest.raises(UserError, match="trains nothing"):
        import_text(text, None)
    trains = text.replace("--do_", "--do_train --do_").replace("do_predict:", "do_train: true\ndo_predict:")
    assert import_text(trains, None).config().model == "m"


@table("text", ["#!/bin/bash\naccelerate launch src/$1.py --config $2\n", "echo 'a: b: c'\n. env.sh\n"])
def test_a_shell_script_without_a_training_is_called_so(text):
    with pytest.raises(UserError, match="starts no training"):
        import_text(text, None, "run.sh")


def test_a_script_that_evaluates_and_trains_is_its_training():
    text = f"python run_clm.py {FLAGS} --do_eval\npython run_clm.py {FLAGS} --do_train --seed 3\n"
    assert import_text(text, None).config().seed == 3


@table(
    ("command", "processes", "machines", "strategy"),
    [
        (f"accelerate launch --num_processes 8 --mixed_precision bf16 train.py {FLAGS}", 8, 1, "ddp"),
        (f"accelerate launch --num-processes=16 --num_machines 2 train.py {FLAGS}", 16, 2, "ddp"),
        (f"accelerate launch --use_deepspeed --zero_stage 3 --num_processes 4 train.py {FLAGS}", 4, 1, "zero3"),
        (f"accelerate launch --num_processes 4 --use_deepspeed train.py {FLAGS}", 4, 1, "zero2"),
        (f"accelerate launch --num_processes 4 --use_fsdp train.py {FLAGS}", 4, 1, "fsdp"),
        (f"CUDA_VISIBLE_DEVICES=0,1 accelerate launch train.py {FLAGS}", 2, 1, "ddp"),
        (f"torchrun --nproc_per_node=4 --nnodes=2 train.py {FLAGS}", 8, 2, "ddp"),
        (f"torchrun --nproc-per-node 4 train.py {FLAGS} --fsdp 'full_shard auto_wrap'", 4, 1, "fsdp"),
        (f"python3 -m torch.distributed.launch --nproc_per_node 3 --use_env train.py {FLAGS}", 3, 1, "ddp"),
        (f"torchrun train.py {FLAGS}", 1, 1, "single"),
        (f"deepspeed --num_gpus=4 --num_nodes 2 train.py {FLAGS}", 8, 2, "ddp"),
        (f"deepspeed --include localhost:0,2,3 --master_port 5 train.py {FLAGS} --deepspeed zero2", 3, 1, "zero2"),
        (f"export CUDA_VISIBLE_DEVICES=4,5\npython train.py {FLAGS}", 2, 1, "ddp"),
        (f"nohup bash -c 'torchrun --nproc_per_node 2 train.py {FLAGS}' > log 2>&1 &", 2, 1, "ddp"),
        (f"CUDA_VISIBLE_DEVICES=0 NPROC_PER_NODE=4 swift sft {SWIFT} --deepspeed zero3_offload", 4, 1, "zero3"),
        (f"CUDA_VISIBLE_DEVICES=0,1 trl sft {FLAGS}", 2, 1, "ddp"),
        (
            "CUDA_VISIBLE_DEVICES=0,1 llamafactory-cli train --stage sft --finetuning_type lora --model_name_or_path m",
            2,
            1,
            "ddp",
        ),
        ("base_model: m\ndp_shard_size: 4\ndp_replicate_size: 2\nfsdp_config: {offload_params: false}\n", 8, 1, "fsdp"),
        (f"trl sft --num_processes 4 --accelerate_config zero2 {FLAGS}", 4, 1, "zero2"),
        ("N=2\nNNODES=1\ntorchrun --nproc_per_node $N --nnodes $NNODES train.py " + FLAGS, 2, 1, "ddp"),
    ],
)
def test_the_launchers_processes_are_those_of_the_run(command, processes, machines, strategy):
    config = import_text(command, None).config()
    assert (config.num_processes, config.num_machines, config.strategy) == (processes, machines, strategy)


@table(
    ("command", "key"),
    [
        (f"accelerate launch train.py {FLAGS}", "num_processes"),
        (f"trl sft {FLAGS}", "num_processes"),
        ("llamafactory-cli train --stage sft --finetuning_type lora --model_name_or_path m", "num_processes"),
        (f"deepspeed train.py {FLAGS}", "num_gpus"),
        (f"torchrun --nproc_per_node gpu train.py {FLAGS}", "nproc_per_node"),
        (f"torchrun --nproc_per_node $GPUS train.py {FLAGS}", "nproc_per_node"),
    ],
)
def test_a_number_of_processes_that_the_machine_decides_is_named(command, key):
    entry = of(command, key)
    assert entry.outcome is Outcome.UNSUPPORTED
    assert "Set num_processes" in entry.note or "GPUS" in entry.note


@table(
    ("command", "method"),
    [
        (f"deepspeed train_lora.py {FLAGS} --lora_r 8 --model_max_length 512", "lora"),
        (f"python finetune.py {FLAGS} --use_lora True", "lora"),
        (f"python finetune.py {FLAGS} --lora_enable True --bits 4", "qlora"),
        (f"python finetune.py {FLAGS} --use_lora False --lora_r 8", "full"),
        (f"python finetune.py {FLAGS} --q_lora", "qlora"),
        (f"trl sft {FLAGS} --lora_r 8", "full"),
        (f"trl sft {FLAGS} --use_peft --load_in_4bit", "qlora"),
        (f"swift sft {SWIFT}", "lora"),
        (f"swift sft {SWIFT} --train_type full", "full"),
        (f"swift sft {SWIFT} --tuner_type lora --quant_bits 4", "qlora"),
        (f"python supervised_finetuning.py {FLAGS} --train_file_dir d --validation_file_dir d", "lora"),
    ],
)
def test_the_method_is_what_the_program_would_train(command, method):
    assert import_text(command, None).config().method == method


@table(
    ("command", "expected"),
    [
        (f"trl sft {FLAGS}", {"max_length": 1024, "eval_split": 0, "micro_batch_size": 8, "gradient_checkpointing": "full"}),
        ("trl dpo --model_name_or_path m", {"learning_rate": 1e-6, "beta": 0.1, "lora_dropout": 0.0}),
        ("trl reward --model_name_or_path m --use_peft", {"learning_rate": 1e-4, "lora_dropout": 0.05, "lora_r": 16}),
        ("python train.py --model_name_or_path m", {"learning_rate": 5e-5, "gradient_checkpointing": "none", "logging_steps": 500}),
        (f"python train.py {FLAGS} --validation_split_percentage 5", {"eval_split": 0.05}),
        (f"swift sft {SWIFT}", {"learning_rate": 1e-4, "gradient_accumulation_steps": 16, "lora_r": 8, "eval_split": 0}),
        (f"swift sft {SWIFT} --num_processes 0", {"gradient_accumulation_steps": 1}),
        ("swift sft --model_id_or_path m --dataset d.jsonl --batch_size 3", {"micro_batch_size": 3, "max_length": 2048,
         "gradient_accumulation_steps": 16, "eval_split": 0.01, "warmup": 0.05}),
        ("swift sft --model_id_or_path m --dataset d.jsonl --dataset_test_ratio 0", {"eval_split": 0}),
        ("python src/train_bash.py --model_name_or_path m --finetuning_type lora --checkpoint_dir old",
         {"max_length": 1024, "init_adapter": "old"}),
        (f"NPROC_PER_NODE=4 swift sft {SWIFT} --train_type full", {"learning_rate": 1e-5, "gradient_accumulation_steps": 4}),
        ("python supervised_finetuning.py --model_name_or_path m --train_file_dir d --tool_format x",
         {"max_length": 512, "lora_r": 8, "lora_alpha": 32, "target_modules": "all-linear", "eval_split": 0.01}),
        ("python dpo_training.py --model_name_or_path m --train_file_dir d --validation_file_dir d",
         {"max_length": 2560, "learning_rate": 5e-4, "gradient_accumulation_steps": 4, "micro_batch_size": 4}),
    ],
)  # fmt: skip
def test_missing_arguments_have_the_programs_defaults(command, expected):
    config = import_text(command, None).config()
    assert {name: getattr(config, name) for name in expected} == expected


def test_files_that_a_command_names_are_read_and_flags_override_them(tmp_path):
    (tmp_path / "recipe.yaml").write_text("model_name_or_path: m\nlearning_rate: 1.0e-3\nmax_length: 64\nbeta: 0.3\n")
    (tmp_path / "accelerate.yaml").write_text(json.dumps({"distributed_type": "FSDP", "num_processes": 8}))
    script = tmp_path / "run.sh"
    script.write_text(
        "accelerate launch --config_file accelerate.yaml --num_processes 4 scripts/run_dpo.py recipe.yaml --learning_rate=2e-6"
    )
    config = import_files([script]).config()
    assert (config.task, config.beta, config.max_length, config.learning_rate) == ("dpo", 0.3, 64, 2e-6)
    assert (config.strategy, config.num_processes) == ("fsdp", 4)


def test_a_file_that_is_not_here_is_named_and_no_default_stands_for_it():
    result = import_text("llamafactory-cli train qwen.yaml", None)
    assert result.programs == ("LLaMA-Factory",)
    assert result.settings == {}
    assert [one.note for one in result.entries if one.value == "qwen.yaml"] == ["is not here. Import that file too."]


def test_a_named_file_without_end_is_not_read(tmp_path):
    script = tmp_path / "run.sh"
    script.write_text("trl sft --config /dev/zero.yaml --model_name_or_path m --deepspeed /dev/zero")
    assert import_files([script]).settings["model"] == "m"


def test_a_deepspeed_file_that_the_script_writes_is_read():
    written = 'cat <<EOF > ds.json\n{"zero_optimization": {"stage": 3}}\nEOF\n'
    text = f"{written}deepspeed --num_gpus 2 train.py {FLAGS} --deepspeed ds.json"
    assert import_text(text, None).config().strategy == "zero3"


def test_only_the_first_training_is_imported_and_the_others_are_named():
    text = f"python prepare.py --input x\ntrl sft {FLAGS}\ntrl dpo {FLAGS}\n"
    result = import_text(text, None)
    assert result.config().task == "sft"
    assert "another training" in next(one for one in result.entries if one.key == "trl dpo").note


def test_values_of_the_script_are_used_and_unknown_ones_named():
    command = "python train.py --model_name_or_path $MODEL --learning_rate $lr --seed $SEED --bf16"
    text = f"MODEL=Qwen/Q\nfor lr in 1 2; do\n {command}\ndone"
    result = import_text(text, None)
    assert result.config().model == "Qwen/Q"
    assert "differs in each round" in of(text, "learning_rate").note
    assert "needs SEED" in of(text, "seed").note
    assert "learning_rate" not in result.settings or result.settings["learning_rate"] == 5e-5


def test_words_that_are_not_known_change_no_value_before_them():
    result = import_text(f"for m in a b; do E=(); if [ $m = a ]; then E+=(--beta 0.1); fi\npython train_dpo.py {FLAGS} "
                         '--gradient_accumulation_steps 2 "${E[@]}"; done', None)  # fmt: skip
    assert result.config().gradient_accumulation_steps == 2
    assert any("condition" in one.note for one in result.entries)


@table(
    ("text", "name"),
    [
        ("xtuner train x.py", "xtuner"),
        ("litgpt finetune_lora m --data JSON", "LitGPT"),
        ("deepspeed --module openrlhf.cli.train_sft --pretrain m --micro_train_batch_size 2", "OpenRLHF"),
        ("python -m verl.trainer.fsdp_sft_trainer data.train_batch_size=4", "verl"),
        ("torchrun pretrain_gpt.py --num-layers 4 --tensor-model-parallel-size 2", "Megatron-LM"),
        ("checkpoint_dir: c\nout_dir: o\ntrain:\n  global_batch_size: 8\n", "LitGPT"),
        ("trainer:\n  devices: 8\n  num_nodes: 1\nexp_manager: {}\n", "NeMo"),
        (
            'max_steps = 20\n\n[model]\nname = "Qwen/Qwen3-0.6B"\n\n[orchestrator]\nbatch_size = 64\n\n[inference]\n',
            "prime-rl",
        ),
        ("torchrun --nproc_per_node=2 -m prime_rl.trainer.sft.train @ sft.toml", "prime-rl"),
        ('[policy]\nmodel_name = "m"\ntrain_global_batch_size = 8\n\n[grpo]\nnum_prompts_per_step = 8\n', "NeMo-RL"),
        ("policy:\n  model_name: m\ncluster:\n  gpus_per_node: 8\n", "NeMo-RL"),
        ('[actor]\nmodel_name = "m"\nmax_length_per_device = 8192\n\n[trainer]\nproject = "p"\n', "RL2"),
        ("torchrun --nproc_per_node=2 -m RL2.trainer.grpo actor.model_name=m", "RL2"),
    ],
)
def test_a_program_that_is_not_read_is_named(text, name):
    with pytest.raises(UserError, match=f"configuration of {name}"):
        import_text(text, None, "x")


@table("order", [sorted, reversed])
def test_zero_of_accelerate_does_not_depend_on_the_order_of_keys(order):
    section = {
        "zero_stage": 3,
        "gradient_accumulation_steps": 4,
        "offload_param_device": "cpu",
        "gradient_clipping": 0.5,
    }
    keys = {
        "compute_environment": "LOCAL_MACHINE",
        "deepspeed_config": section,
        "distributed_type": "DEEPSPEED",
        "num_processes": 8,
    }
    config = import_text(json.dumps({key: keys[key] for key in order(list(keys))}), None).config()
    assert (config.strategy, config.offload_param, config.num_processes) == ("zero3", "cpu", 8)
    assert (config.gradient_accumulation_steps, config.max_grad_norm) == (4, 0.5)


def test_options_of_schedulers_templates_and_kernels_are_taken():
    text = (
        "model_name_or_path: m\nlearning_rate: 1.0e-4\nlr_scheduler_type: cosine_with_min_lr\n"
        "lr_scheduler_kwargs: {min_lr_rate: 0.2}\n"
        "chat_template: '{{ messages }}'\nuse_liger_kernel: true\nhub_model_id: o/m\npush_to_hub: false\n"
    )
    config = import_text(text, None).config()
    assert (config.lr_scheduler, config.min_lr_ratio, config.chat_template) == (
        "cosine_with_min_lr",
        0.2,
        "{{ messages }}",
    )
    assert config.push_to_hub is None
    lowest = import_text(text.replace("min_lr_rate: 0.2", "min_lr: 1.0e-5"), None).config()
    assert lowest.min_lr_ratio == pytest.approx(0.1)
    assert of(text, "use_liger_kernel").outcome is Outcome.TRANSLATED


def test_a_default_does_not_override_what_another_file_gives(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps({"peft_type": "LORA", "r": 64, "lora_alpha": 8}))
    (tmp_path / "b.yaml").write_text("finetuning_type: lora\nmodel_name_or_path: m\n")
    config = import_files([tmp_path / "a.json", tmp_path / "b.yaml"]).config()
    assert (config.lora_r, config.lora_alpha) == (64, 8)


@table(
    ("text", "program", "expected"),
    [
        ("torchrun run_clm_sft_with_peft.py --model_name_or_path m --dataset_dir d --validation_split_percentage 0.001 "
         "--lora_rank 64 --trainable q_proj,v_proj --load_in_kbits 4 --max_seq_length 512", "transformers and trl",
         {"task": "sft", "method": "qlora", "lora_r": 64, "target_modules": "q_proj,v_proj", "eval_split": 0.001,
          "max_length": 512}),
        ('{"model_name_or_path": "m", "train_file": "d", "template_name": "t", "max_seq_length": 64}', "Firefly",
         {"method": "qlora", "lora_r": 64, "lora_alpha": 16, "target_modules": "all-linear", "max_length": 64, "eval_split": 0}),
        ('{"model_name_or_path": "m", "train_file": "d", "train_mode": "full", "max_seq_length": 64}', "Firefly",
         {"method": "full"}),
        ("python qlora.py --model_name_or_path m --source_max_len 16 --target_max_len 512 --do_eval", "transformers and trl",
         {"method": "qlora", "max_length": 528, "eval_split": 1024, "lora_r": 64, "gradient_accumulation_steps": 16}),
        (f"python train.py {FLAGS} --full_finetune False --bits nf4 --adapter_name_or_path init", "transformers and trl",
         {"method": "qlora", "quantization": "4bit"}),
        (f"python run_clm.py {FLAGS} --peft_path old --lora_rank 8", "transformers and trl", {"init_adapter": "old"}),
        ("swift sft --model m --adapters old --tuner_type lora", "ms-swift", {"init_adapter": "old"}),
        ("python train.py --model_id m --load_in_bits 8 --lora_r 4 --per_device_train_batch_size 1", "transformers and trl",
         {"model": "m", "method": "qlora", "quantization": "8bit"}),
        ('{"model_name_or_path": "m", "peft_type": "lora", "lora_r": 2, "learning_rate": 1e-3}', "transformers and trl",
         {"method": "lora", "lora_r": 2}),
        ("python src/train_bash.py --model_name_or_path m --finetuning_type lora --max_source_length 100 --dev_ratio 0.01",
         "LLaMA-Factory", {"max_length": 612, "eval_split": 0.01}),
        (f"deepspeed --num_gpus 2 train_lora.py {FLAGS} --lora_r 8 --q_lora False", "transformers and trl", {"method": "lora"}),
        (f"python train.py {FLAGS} --use_peft_lora True --use_4bit_quantization True", "transformers and trl", {"method": "qlora"}),
    ],
)  # fmt: skip
def test_scripts_of_other_projects_keep_their_meaning(text, program, expected):
    result = import_text(text, None)
    assert result.programs == (program,)
    config = result.config()
    assert {name: getattr(config, name) for name in expected} == expected


@table(
    ("name", "text", "task"),
    [
        ("recipes/orpo/config.yaml", "model_name_or_path: m\nbeta: 0.05\nmax_length: 64\n", "orpo"),
        ("dpo.yaml", "model_name_or_path: m\nlearning_rate: 5.0e-7\n", "dpo"),
        ("dpo/sft.yaml", "model_name_or_path: m\nlearning_rate: 5.0e-7\n", "sft"),
        ("kto.yaml", "model_name_or_path: m\nloss_type: apo_zero_unpaired\n", "kto"),
        ("online-ppo/run.yaml", "model_name_or_path: m\n", "sft"),
    ],
)
def test_the_name_of_a_file_says_the_task_where_its_keys_do_not(name, text, task):
    assert import_text(text, None, name).config().task == task


def test_a_name_of_a_file_of_preferences_refuses_what_lathe_does_not_train():
    with pytest.raises(UserError, match="CPO"):
        import_text("model_name_or_path: m\nbeta: 0.1\n", None, "recipes/cpo/config.yaml")


def test_simpo_is_refused_by_its_own_keys():
    with pytest.raises(UserError, match="SIMPO"):
        import_text("model_name_or_path: m\nbeta: 2.5\ngamma_beta_ratio: 0.5\n", None)


@table(
    "text",
    [
        "base_model: m\nrl: ebft\n",
        "base_model: m\nprocess_reward_model: true\n",
        "stage: moon\nfinetuning_type: lora\nmodel_name_or_path: m\n",
        f"swift rlhf --rlhf_type moon {SWIFT}",
        "model: {model_name: m}\ntraining: {trainer_type: MOON}\n",
    ],
)
def test_an_unknown_task_is_refused_and_not_taken_for_another(text):
    with pytest.raises(UserError, match="Lathe has no"):
        import_text(text, None)


def test_a_method_of_peft_is_taken():
    assert import_text("stage: sft\nfinetuning_type: oft\nmodel_name_or_path: m\n", None).config().method == "oft"
    config = import_text(f"python main.py {FLAGS} --pre_seq_len 128", None).config()
    assert (config.method, config.method_options) == ("prefix_tuning", "num_virtual_tokens=128")


def test_a_command_that_another_one_submits_is_read():
    text = (
        f"python submit.py --gpus 8 -- source env.sh \\&\\& uv run accelerate launch --num_processes 8 train.py {FLAGS}"
    )
    assert import_text(text, None).config().num_processes == 8


def test_unknown_options_of_a_launcher_do_not_hide_the_script():
    result = import_text(
        f'N=" --nnodes 2 "; [ "$X" ] && N+=" --node_rank $R "\ntorchrun $N $MORE dpo_train.py {FLAGS}', None
    )
    assert (result.config().task, result.config().num_machines) == ("dpo", 2)


@table(
    ("stage", "lengths", "length"),
    [
        ("pt", "max_source_length: 2048", 2048),
        ("pt", "max_source_length: 2048\nmax_target_length: 100", 2048),
        ("sft", "max_source_length: 2048", 2560),
        ("sft", "max_source_length: 2048\nmax_target_length: 100", 2148),
    ],
)
def test_the_source_length_of_llamafactory_is_the_whole_one_of_a_text_that_is_continued(stage, lengths, length):
    text = f"stage: {stage}\nmodel_name_or_path: m\ndataset: d\n{lengths}\nfinetuning_type: full\n"
    assert import_text(text, None).config().max_length == length
