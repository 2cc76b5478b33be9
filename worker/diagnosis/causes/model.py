"""Causes of failure: models, adapters and checkpoints."""

from worker.diagnosis.cause import Cause, Kind, sign

CAUSES = (
    Cause(
        "state_dict_keys",
        "The names of the saved weights do not match the model's.",
        (
            sign(r"(?:Missing|Unexpected) key\(s\) in state_dict", 0.96),
            sign(r"Error\(s\) in loading state_dict for (?P<model>\w+)", 0.8, Kind.CONSEQUENCE),
            sign(r"ValueError: \S+ does not have a parameter or a buffer named \S+", 0.85),
            sign(r"No module named '_orig_mod'|KeyError: '(?:_orig_mod|module|base_model)\.[\w.]+'", 0.8),
        ),
        (
            "Load them into the class they were saved from. The prefix of the names shows the wrapper: `module.` is DDP, `_orig_mod.` is torch.compile, `base_model.model.` is PEFT.",
        ),
        explanation="The model is a {model}.",
    ),
    Cause(
        "size_mismatch",
        "The shape of a saved weight does not match the model's.",
        (
            sign(
                r"size mismatch for (?P<name>[\w.]+): copying a param with shape (?P<saved>torch\.Size\(\[(?!0\])[^\]]*\]\)).{0,40}shape in current model is (?P<model>torch\.Size\(\[[^\]]*\]\))",
                0.97,
            ),
            sign(
                r"size mismatch for (?P<name>[\w.]+): copying a param with shape (?P<saved>torch\.Size\(\[[^\]]*\]\)).*shape in current model is (?P<model>torch\.Size\(\[[^\]]*\]\))",
                0.97,
            ),
            sign(r"ignore_mismatched_sizes=True", 0.9),
            sign(r"Global shape mismatch for loaded", 0.93),
        ),
        (
            "If it is the embedding, resize it to the tokenizer (model.resize_token_embeddings) before you load the adapter or checkpoint.",
            "Otherwise use the base model and the LoRA r that the adapter was trained with. A shape of [0] is a weight that ZeRO-3 partitions: load it inside the ZeRO-3 context.",
        ),
        explanation="{name} is {saved} in the file and {model} in the model.",
    ),
    Cause(
        "model_type_unknown",
        "The installed transformers does not support this model type.",
        (
            sign(r"model type `(?P<model>[^`]+)` but Transformers does not recognize this architecture", 0.97),
            sign(r"KeyError: '(?P<model>mistral|mixtral|llama\d*|qwen\w*|gemma\w*|phi\w*|deepseek\w*)'", 0.85),
            sign(r"Tokenizer class (?P<model>\w+) does not exist or is not currently imported", 0.93),
            sign(r"Unrecognized model in \S+\. Should have a `model_type` key", 0.93),
        ),
        (
            "Install a newer transformers (pip install -U transformers). If config.json names no model_type, the folder is not a transformers model.",
        ),
        explanation="Model type: {model}.",
    ),
    Cause(
        "remote_code_refused",
        "The model or data set needs custom code, which is not allowed to run.",
        (
            sign(r"(?:[Pp]ass|set) the (?:option|argument) `?trust_remote_code=True`?", 0.93),
            sign(r"requires? you to execute the .* file in that repo", 0.95),
            sign(r"contains custom code which must be executed", 0.95),
            sign(r"Dataset scripts are no longer supported", 0.95),
        ),
        (
            "Choose a model that transformers supports, or a converted copy of it.",
            "If you have read the code and trust it, run it outside Lathe with trust_remote_code=True and a fixed revision.",
        ),
    ),
    Cause(
        "target_modules_missing",
        "The adapter's target modules are not in the model.",
        (
            sign(r"Target modules (?P<names>.+?) not found in the base model", 0.97),
            sign(r"Please specify `target_modules` in `peft_config`", 0.95),
        ),
        ("Set target_modules to all-linear, or to modules of the model: `lathe targets --model MODEL` lists them.",),
        changes={"target_modules": "all-linear"},
    ),
    Cause(
        "quantized_full_finetune",
        "Quantized weights cannot be trained directly.",
        (
            sign(r"You cannot perform fine-tuning on purely quantized models", 0.98),
            sign(r"You can't train a model that has been loaded (?:in|with) `?(?:device_map|8-bit|4-bit)", 0.93),
            sign(r"only Tensors of floating point (?:and complex )?dtype can require gradients", 0.8),
        ),
        ("Train an adapter (method qlora), or load the weights unquantized.",),
        changes={"method": "qlora"},
    ),
    Cause(
        "quantized_device_move",
        "A quantized model was moved to another device after loading.",
        (
            sign(
                r"`\.to` is not supported for `?(?:4-bit|8-bit)|is not supported for `(?:4-bit|8-bit)` (?:or `8-bit` )?bitsandbytes models",
                0.96,
            ),
        ),
        ("Load it on its final device: device_map={'': local_rank}, and remove the call of .to() or .cuda().",),
    ),
    Cause(
        "flash_attention_unsupported",
        "FlashAttention does not support this GPU or this number format.",
        (
            sign(r"FlashAttention only support(?:s)? (?:fp16 and bf16|Ampere GPUs or newer)", 0.97),
            sign(r"Expected is_sm(?:80|8x|90).* to be true, but got false", 0.93),
            sign(r"Flash[_ ]?[Aa]ttention.*only supports? .*(?:dtype|float16)", 0.9),
        ),
        ("Set attention to sdpa. FlashAttention 2 needs an Ampere GPU or newer, and fp16 or bf16.",),
        changes={"attention": "sdpa"},
    ),
    Cause(
        "attention_unsupported",
        "The model does not support the requested attention implementation.",
        (
            sign(
                r"does not support (?:an attention implementation through torch\.nn\.functional\.scaled_dot_product_attention|Flash Attention \d|flex attention)",
                0.96,
            ),
        ),
        ("Set attention to auto or eager.",),
        changes={"attention": "eager"},
    ),
    Cause(
        "optimizer_state_mismatch",
        "The checkpoint's optimizer state belongs to another set of trainable weights.",
        (
            sign(
                r"loaded state dict contains a parameter group that doesn't match the size of optimizer's group", 0.96
            ),
            sign(r"loaded state dict has a different number of parameter groups", 0.96),
            sign(r"RuntimeError: Size mismatch$", 0.7, inside=r"optim"),
            sign(r"KeyError: '?(?:exp_avg|step|state)'?$", 0.7, inside=r"optim"),
        ),
        (
            "Resume with the settings that wrote it: method, target modules, LoRA r, modules to save, optimizer, frozen layers.",
            "To go on with other settings, load only the weights and start a new run (without resume_from_checkpoint).",
        ),
    ),
    Cause(
        "checkpoint_world_size",
        "The checkpoint was written by another number of processes.",
        (
            sign(r"used a DP world size of (?P<saved>\d+) but the current world size is (?P<now>\d+)", 0.97),
            sign(
                r"The size of tensor a \(\d{6,}\) must match the size of tensor b \(\d{6,}\) at non-singleton dimension 0",
                0.85,
                inside=r"deepspeed|checkpoint|optim",
            ),
            sign(
                r"Expected (?:all )?\d+ (?:ranks|checkpoint) files.*but (?:found|got) \d+|number of (?:zero )?checkpoint (?:files|shards) .* world size",
                0.85,
            ),
        ),
        (
            "Resume with the number of processes that wrote it, or convert it: DeepSpeed's universal checkpoint (ds_to_universal.py, then load_universal), or zero_to_fp32.py for the weights alone.",
        ),
        explanation="Written by {saved} processes, read by {now}.",
    ),
    Cause(
        "weights_on_meta_device",
        "Weights were never loaded: they are still on the meta device, which holds no data.",
        (
            sign(r"Cannot copy out of meta tensor; no data!", 0.95),
            sign(r"Tensor on device meta is not on the expected device|is on the meta device, we need a `value`", 0.93),
            sign(r"Tensor\.item\(\) cannot be called on meta tensors", 0.9),
        ),
        (
            'Do not combine low_cpu_mem_usage or device_map="auto" with a launcher (DeepSpeed, FSDP, torchrun): load the model whole, or let the strategy load it.',
            'With device_map="auto", layers that did not fit on the GPU are offloaded: use a smaller model or 4 bits, and do not move the model afterwards.',
        ),
    ),
    Cause(
        "shared_tensors",
        "Weights that share memory cannot be saved as safetensors.",
        (sign(r"Some tensors share memory, this will lead to duplicate memory", 0.97),),
        (
            "Save with model.save_pretrained, which knows the model's tied weights, or untie the weights that the model does not declare as tied.",
            "In older versions, save_safetensors=False saves them anyway.",
        ),
    ),
    Cause(
        "adapter_config_missing",
        "The folder given as an adapter contains no adapter_config.json.",
        (sign(r"Can't find 'adapter_config\.json' at '(?P<path>[^']+)'", 0.97),),
        (
            "Give the folder into which the adapter was saved (save_pretrained of the PEFT model), often the last checkpoint-N. A merged or full model is loaded without PEFT.",
        ),
        explanation="Path: {path}.",
    ),
    Cause(
        "gguf_export_failed",
        "The converter to GGUF cannot convert a weight of this model.",
        (
            sign(r"Can not map tensor '(?P<name>[^']+)'", 0.97),
            sign(
                r"Model architecture \S* ?(?P<name>\S+) (?:is )?not supported|NotImplementedError: Architecture '(?P<kind>\w+)' not supported",
                0.85,
            ),
            sign(r"BPE pre-tokenizer was not recognized|Unsloth: Quantization failed for", 0.9),
        ),
        (
            "Convert the unquantized, merged model: weights quantized by GPTQ, AWQ or bitsandbytes (names with qweight, absmax, SCB) cannot be converted.",
            "For a new architecture, use a newer llama.cpp.",
        ),
        explanation="Weight: {name}.",
    ),
    Cause(
        "checkpoint_not_found",
        "The folder to resume from contains no complete checkpoint.",
        (sign(r"Can't find a valid checkpoint at (?P<path>\S+)|No valid checkpoint found in output directory", 0.97),),
        (
            "Give a checkpoint-N folder that contains the weights and trainer_state.json. A folder without trainer_state.json holds a result, not a checkpoint.",
            "Old transformers (before 4.31) did not recognize an adapter's checkpoint: update transformers and peft.",
        ),
        explanation="Path: {path}.",
    ),
    Cause(
        "loss_missing",
        "The model returned no loss, since the batch has no labels.",
        (sign(r"The model did not return a loss from the inputs, only the following keys: (?P<keys>[\w,]+)", 0.97),),
        (
            "Give the rows a column labels, or a collator that makes them (DataCollatorForLanguageModeling with mlm=False).",
            "remove_unused_columns drops columns that the model's forward does not name: with a wrapped model set it to false, or set label_names.",
        ),
        explanation="It returned: {keys}.",
    ),
    Cause(
        "processor_missing",
        "A multimodal model's processor could not be loaded.",
        (
            sign(r"Processor was not found, please check and update your model file", 0.96),
            sign(
                r"Can't load (?:image processor|feature extractor|processor) for '(?P<name>[^']+)'|preprocessor_config\.json",
                0.8,
            ),
        ),
        (
            "The model's folder needs preprocessor_config.json and processor_config.json (copy them from the original model), and a transformers version that knows the processor.",
        ),
    ),
)
