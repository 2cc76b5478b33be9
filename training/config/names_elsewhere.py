"""What settings are called in transformers, trl, LLaMA-Factory and axolotl, for the hint at an unknown setting."""

ELSEWHERE = {
    "model_name_or_path": "model", "base_model": "model", "dataset": "data", "datasets": "data", "dataset_name": "data",
    "train_file": "data", "cutoff_len": "max_length", "sequence_len": "max_length", "max_seq_length": "max_length",
    "max_seq_len": "max_length", "model_max_length": "max_length", "num_train_epochs": "epochs", "num_epochs": "epochs",
    "per_device_train_batch_size": "micro_batch_size", "batch_size": "micro_batch_size", "train_batch_size": "micro_batch_size",
    "grad_accum": "gradient_accumulation_steps", "lora_rank": "lora_r", "lora_target": "target_modules",
    "lora_target_modules": "target_modules", "additional_target": "modules_to_save", "lora_modules_to_save": "modules_to_save",
    "lr": "learning_rate", "lr_scheduler_type": "lr_scheduler", "optim": "optimizer", "warmup_ratio": "warmup",
    "warmup_steps": "warmup", "val_size": "eval_split", "val_set_size": "eval_split", "eval_dataset": "validation_data",
    "finetuning_type": "method", "adapter": "method", "use_peft": "method", "stage": "task", "rl": "task", "bf16": "precision",
    "fp16": "precision", "mixed_precision": "precision", "deepspeed": "deepspeed_config", "distributed_type": "strategy",
    "attn_implementation": "attention", "flash_attn": "attention", "flash_attention": "attention", "sample_packing": "packing",
    "quantization_bit": "quantization", "load_in_4bit": "quantization", "load_in_8bit": "quantization", "pref_beta": "beta",
    "pref_loss": "dpo_loss", "train_on_inputs": "train_on_prompt", "group_by_length": "batch_order", "hub_model_id": "push_to_hub",
    "chat_template_path": "chat_template", "chat_template_jinja": "chat_template", "mask_history": "loss_on",
    "message_field_training": "loss_field", "enable_thinking": "chat_template_kwargs",
    "run_name": "name", "nproc_per_node": "num_processes", "nnodes": "num_machines", "load_best_model_at_end": "load_best_at_end",
}  # fmt: skip
