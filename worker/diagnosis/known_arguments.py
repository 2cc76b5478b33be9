"""Names of arguments that training libraries have, or had in an older version."""

import re

OF_TRAINING_ARGUMENTS = frozenset(
    re.findall(
        r"\w+",
        """
    accelerator_config activation_checkpointing activation_checkpointing_kwargs adafactor adam_beta1 adam_beta2
    adam_epsilon auto_find_batch_size average_tokens_across_devices batch_eval_metrics bf16 bf16_full_eval data_seed
    dataloader_drop_last dataloader_in_order dataloader_multiprocessing_context dataloader_num_workers
    dataloader_persistent_workers dataloader_pin_memory dataloader_prefetch_factor ddp_backend ddp_broadcast_buffers
    ddp_bucket_cap_mb ddp_find_unused_parameters ddp_static_graph ddp_timeout debug deepspeed disable_tqdm
    dispatch_batches do_eval do_predict do_train enable_jit_checkpoint eval_accumulation_steps eval_delay
    eval_do_concat_batches eval_on_start eval_steps eval_strategy eval_use_gather_object evaluate_during_training
    evaluation_strategy fp16 fp16_backend fp16_full_eval fp16_opt_level fsdp fsdp_config fsdp_min_num_params
    fsdp_transformer_layer_cls_to_wrap full_determinism generation_config generation_max_length generation_num_beams
    gradient_accumulation_steps gradient_checkpointing gradient_checkpointing_kwargs greater_is_better group_by_length
    half_precision_backend hub_always_push hub_model_id hub_private_repo hub_revision hub_strategy hub_token
    ignore_data_skip include_for_metrics include_inputs_for_metrics include_num_input_tokens_seen
    include_tokens_per_second jit_mode_eval label_names label_smoothing_factor learning_rate length_column_name
    liger_kernel_config load_best_model_at_end local_rank log_level log_level_replica log_on_each_node logging_dir
    logging_first_step logging_nan_inf_filter logging_steps logging_strategy lr_scheduler_kwargs lr_scheduler_type
    max_grad_norm max_steps metric_for_best_model mp_parameters n_gpu neftune_noise_alpha no_cuda num_train_epochs
    optim optim_args optim_target_modules output_dir overwrite_output_dir parallelism_config past_index
    per_device_eval_batch_size per_device_train_batch_size per_gpu_eval_batch_size per_gpu_train_batch_size
    predict_with_generate prediction_loss_only project push_to_hub push_to_hub_model_id push_to_hub_organization
    push_to_hub_token ray_scope remove_unused_columns report_to restore_callback_states_from_checkpoint
    resume_from_checkpoint run_name save_on_each_node save_only_model save_safetensors save_steps save_strategy
    save_total_limit seed sharded_ddp skip_memory_metrics sortish_sampler split_batches tf32 torch_compile
    torch_compile_backend torch_compile_mode torch_empty_cache_steps torchdynamo tpu_metrics_debug tpu_num_cores
    trackio_bucket_id trackio_space_id trackio_static_space_id train_sampling_strategy use_cache use_cpu use_ipex
    use_legacy_prediction_loop use_liger_kernel use_mps_device warmup_ratio warmup_steps weight_decay xpu_backend
    """,
    )
)
"""Of transformers' TrainingArguments (4.31 to 5.23)."""

OF_TRAINERS = frozenset(
    re.findall(
        r"\w+",
        """
    accelerator_kwargs activation_offloading adap_kl_ctrl allow_tf32 args assistant_only_loss async_reward_computation
    attn_implementation backward_batch_size base_model_attribute_name batch_size beta bnb_4bit_quant_storage
    bnb_4bit_quant_type cache_implementation callbacks cast_lm_head_to_fp32 center_rewards_coefficient chars_per_token
    chat_template_kwargs chat_template_path cliprange cliprange_value compare_steps completion_only_loss
    compute_loss_func compute_metrics config cpo_alpha data_collator dataset dataset_batch_size dataset_kwargs
    dataset_num_proc dataset_text_field delta desirable_weight disable_dropout discopop_tau ds3_gather_for_generation
    dtype early_stopping entropy_coef entropy_coef_delta entropy_coef_max entropy_coef_min entropy_target
    environment_factory eos_token epsilon epsilon_high eval_dataset eval_packing exp_name f_alpha_divergence_coef
    f_divergence_type force_use_ref_model formatting_func forward_batch_size gamma generate_during_eval
    generation_batch_size generation_kwargs global_backward_batch_size global_batch_size gpu_memory_utilization
    horizon image_samples_hook importance_sampling_level infinite init_kl_coef is_encoder_decoder is_peft_model judge
    kl_coef kl_estimator kl_penalty label_pad_token_id label_smoothing lam ld_alpha load_in_4bit load_in_8bit
    log_completions log_completions_hub_repo log_multimodal log_unique_prompts log_with logdir lora_alpha lora_dropout
    lora_modules_to_save lora_r lora_target_modules lora_target_parameters lora_task_type loss_is_scaled_for_ga
    loss_type loss_weights lr_scheduler mask_truncated_completions max_completion_length max_length max_new_tokens
    max_prompt_length max_seq_length max_target_length max_tool_calling_iterations max_workers min_p mini_batch_size
    missing_eos_penalty mixed_precision model model_adapter_name model_init model_init_kwargs model_name
    model_name_or_path model_revision multi_objective_aggregation negative_prompts normalize_advantage
    normalize_advantages normalize_reward num_checkpoint_limit num_completions_to_print num_epochs num_generations
    num_generations_eval num_iterations num_of_sequences num_ppo_epochs num_shared_layers off_policy_mask_threshold
    optimize_cuda_cache optimize_device_cache optimizer optimizer_cls_and_kwargs optimizers packing packing_strategy
    pad_to_multiple_of pad_token padding_free padding_value peft_config per_prompt_stat_tracking
    per_prompt_stat_tracking_buffer_size per_prompt_stat_tracking_min_count policy ppo_epochs
    precompute_ref_batch_size precompute_ref_log_probs preprocess_logits_for_metrics processing_class project_kwargs
    prompt_function push_to_hub_if_best_kwargs quantization_config query_dataset ratio_threshold ref_adapter_name
    ref_model ref_model_init_kwargs ref_model_mixup_alpha ref_model_sync_steps ref_policy reference_free
    repetition_penalty resume_from reward_clip_range reward_funcs reward_function reward_model reward_model_path
    reward_processing_class reward_processing_classes reward_weights rloo_k rollout_func router_aux_loss_coef
    rpo_alpha sample_batch_size sample_eta sample_guidance_scale sample_num_batches_per_epoch sample_num_steps
    sapo_temperature_neg sapo_temperature_pos save_freq scale_rewards score_clip sd_pipeline shuffle_dataset
    simpo_gamma steps steps_per_generation sync_ref_model target target_kl task_name temperature token_level_kl
    tokenizer tools top_entropy_quantile top_k top_p torch_dtype tracker_kwargs tracker_project_name train_adam_beta1
    train_adam_beta2 train_adam_epsilon train_adam_weight_decay train_adv_clip_max train_batch_size train_cfg
    train_clip_range train_dataset train_gradient_accumulation_steps train_learning_rate train_max_grad_norm
    train_num_inner_epochs train_timestep_fraction train_use_8bit_adam training_data_collator
    transformers_continuous_batching_config truncation_mode trust_remote_code undesirable_weight use_adaptive_entropy
    use_bias_correction_kl use_bnb_nested_quant use_dora use_liger use_liger_loss use_logits_to_keep
    use_num_logits_to_keep use_peft use_rslora use_score_norm use_score_scaling use_transformers_continuous_batching
    use_transformers_paged use_vllm use_weighting value_model vespo_k_neg vespo_k_pos vespo_lambda_neg
    vespo_lambda_pos vf_coef vllm_device vllm_dtype vllm_enable_sleep_mode vllm_gpu_memory_utilization vllm_group_port
    vllm_guided_decoding_regex vllm_importance_sampling_cap vllm_importance_sampling_clip_max
    vllm_importance_sampling_clip_min vllm_importance_sampling_correction vllm_importance_sampling_mode
    vllm_max_model_len vllm_max_model_length vllm_mode vllm_model_impl vllm_server_base_url vllm_server_host
    vllm_server_port vllm_server_timeout vllm_structured_outputs_regex vllm_tensor_parallel_size
    wandb_log_unique_prompts whiten_rewards world_size
    """,
    )
)
"""Of the trainers of transformers and trl, and of trl's configurations (0.4 to 1.16), besides those of TrainingArguments."""

OF_LORA = frozenset(
    re.findall(
        r"\w+",
        """
        alora_invocation_tokens alpha_pattern arrow_config auto_mapping base_model_name_or_path bias
        corda_config ensure_weight_tying eva_config exclude_modules fan_in_fan_out inference_mode
        init_lora_weights kasa_config layer_replication layers_pattern layers_to_transform loftq_config
        lora_alpha lora_bias lora_dropout lora_ga_config megatron_config megatron_core modules_to_save
        monteclora_config peft_type peft_version qalora_group_size r rank_pattern revision runtime_config
        target_modules target_parameters task_type trainable_token_indices use_bdlora use_dora use_qalora
        use_rslora velora_config
        """,
    )
)
"""Of PEFT's LoraConfig (0.2 to 0.21)."""
