"""Causes of failure: saved weights, adapters and checkpoints."""

from worker.diagnosis.cause import Cause, Kind, sign
from worker.diagnosis.conditions import ends_in

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
            sign(r"ignore_mismatched_sizes(?:=True|` to `False`)", 0.9),
            sign(
                r"Trying to set a tensor of shape (?P<saved>torch\.Size\(\[(?!0\])[^\]]*\]\)) in \"(?P<name>[^\"]+)\" \(which has shape (?P<model>torch\.Size\(\[[^\]]*\]\))",
                0.95,
            ),
            sign(r"Global shape mismatch for loaded", 0.93),
        ),
        (
            "If it is the embedding, resize it to the tokenizer (model.resize_token_embeddings) before you load the adapter or checkpoint.",
            "Otherwise use the base model and the LoRA r that the adapter was trained with. A shape of [0] is a weight that ZeRO-3 partitions: load it inside the ZeRO-3 context.",
        ),
        explanation="{name} is {saved} in the file and {model} in the model.",
    ),
    Cause(
        "optimizer_state_mismatch",
        "The checkpoint's optimizer state belongs to another set of trainable weights.",
        (
            sign(
                r"loaded state dict contains a parameter group that doesn't match the size of optimizer's group", 0.96
            ),
            sign(r"loaded state dict has a different number of parameter groups", 0.96),
            sign(r"The state of _OptimStateKey\(.{1,8000}\) is empty", 0.95),
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
            sign(r"since some parameters are on the meta device|is on the meta device because it was offloaded", 0.9),
            sign(r"You can't move a model that has some modules offloaded to cpu or disk", 0.8),
        ),
        (
            'Do not combine low_cpu_mem_usage or device_map="auto" with a launcher (DeepSpeed, FSDP, torchrun): load the model whole, or let the strategy load it.',
            'With device_map="auto", layers that did not fit on the GPU are offloaded: use a smaller model or 4 bits, and do not move the model afterwards.',
        ),
    ),
    Cause(
        "shared_tensors",
        "Weights that share memory cannot be saved as safetensors.",
        (
            sign(
                r"Some tensors share memory, this will lead to duplicate memory|The weights trying to be saved contained shared tensors",
                0.97,
            ),
        ),
        (
            "Save with model.save_pretrained, which knows the model's tied weights, or untie the weights that the model does not declare as tied.",
            "In older versions, save_safetensors=False saves them anyway.",
        ),
    ),
    Cause(
        "adapter_config_missing",
        "The folder given as an adapter contains no adapter_config.json.",
        (
            sign(
                r"Can't find 'adapter_config\.json' at '(?P<path>[^']+)'|(?<!\S)(?P<folder>\S{1,300}) does not (?:contain|appear to have a file named) '?adapter_config\.json",
                0.97,
            ),
        ),
        (
            "Give the folder into which the adapter was saved (save_pretrained of the PEFT model), often the last checkpoint-N. A merged or full model is loaded without PEFT.",
        ),
        explanation="Path: {path}.",
    ),
    Cause(
        "gguf_export_failed",
        "The model could not be converted to GGUF.",
        (
            sign(r"Can not map tensor '(?P<name>[^']+)'", 0.97),
            sign(
                r"Model architecture \S* ?(?P<name>\S+) (?:is )?not supported|NotImplementedError: Architecture '(?P<kind>\w+)' not supported",
                0.85,
            ),
            sign(r"BPE pre-tokenizer was not recognized|Unsloth: Quantization failed for", 0.9),
            sign(
                r"GGUF conversion failed|[Ff]ailed to convert .{0,200}to GGUF|Unsloth: .*(?:llama-quantize|llama\.cpp/\w+)\S* .*(?:does not exist|cannot be found)|Failed compiling llama\.cpp",
                0.88,
                Kind.OUTCOME,
            ),
            sign(r"CalledProcessError: Command .*convert[-_](?:hf|lora)[-_]to[-_]gguf", 0.8, Kind.OUTCOME),
            sign(
                r"^(?:NotImplemented|Value|Key|Type|Attribute|Index|Assertion|Runtime)Error(?:: (?P<what>.{1,200})|$)",
                0.75,
                when=ends_in(r"convert[-_](?:hf|lora)[-_]to[-_]gguf|/gguf[-_]py/|-packages/gguf/"),
            ),
        ),
        (
            "Convert the unquantized, merged model, in a folder with its config.json and tokenizer: weights quantized by GPTQ, AWQ or bitsandbytes (names with qweight, absmax, SCB) cannot be converted.",
            "For a new architecture, use a newer llama.cpp.",
        ),
        explanation="Weight: {name}.",
    ),
    Cause(
        "checkpoint_not_found",
        "The folder to resume from contains no complete checkpoint.",
        (
            sign(r"Can't find a valid checkpoint at (?P<path>\S+)|No valid checkpoint found in output directory", 0.97),
            sign(r"Provided path \((?P<folder>[^)]+)\) does not contain (?:a LoRA|any) (?:weight|checkpoint)", 0.9),
            sign(r"Unable to find latest file at|Tried to find (?P<folder>\S+) but folder does not exist", 0.85),
        ),
        (
            "Give a checkpoint-N folder that contains the weights and trainer_state.json. A folder without trainer_state.json holds a result, not a checkpoint.",
            "Old transformers (before 4.31) did not recognize an adapter's checkpoint: update transformers and peft.",
        ),
        explanation="Path: {path}.",
    ),
)
