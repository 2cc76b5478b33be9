"""Causes of failure: weights split or copied over several GPUs (DDP, ZeRO, FSDP, device_map)."""

from worker.diagnosis.cause import Cause, sign
from worker.diagnosis.conditions import mentions

_SHARDED = mentions(r"(?i)deepspeed|zero[-_ ]?3|stage_?3|fsdp")

CAUSES = (
    Cause(
        "parameters_unused",
        "DDP waited for gradients of weights that are not used in the loss.",
        (sign(r"Expected to have finished reduction in the prior iteration before starting a new one", 0.97),),
        (
            "Set find_unused_parameters=True (ddp_find_unused_parameters), or freeze the unused weights.",
            "TORCH_DISTRIBUTED_DEBUG=DETAIL lists them.",
        ),
    ),
    Cause(
        "parameter_ready_twice",
        "DDP received the gradient of a weight twice in one backward pass.",
        (sign(r"Expected to mark a variable ready only once", 0.97),),
        (
            "With gradient checkpointing, set use_reentrant=False (gradient_checkpointing_kwargs), and find_unused_parameters=False.",
            "If layers share weights, use DDP's static_graph=True.",
        ),
    ),
    Cause(
        "devices_mixed",
        "The tensors of one operation are on different devices.",
        (
            sign(
                r"Expected all tensors to be on the same device, but found at least two devices, (?P<first>[\w:]+) and (?P<second>[\w:]+)|Expected all tensors to be on the same device",
                0.96,
            ),
            sign(
                r"Input type \((?:MPS|torch\.cuda)\S+\) and (?:weight|bias) type \(torch\.(?!cuda)\S+\)|Input type \(torch\.(?!cuda)\S+\) and (?:weight|bias) type \((?:MPS|torch\.cuda)\S+\)",
                0.93,
            ),
            sign(
                r"Placeholder storage has not been allocated on \w+ device|Expected a '\S+' generator device but found|tensors? (?:is|are) on (?:a )?different devices?|(?:should be|must be|not|to be) (?:on|at) the same (?:device|GPU)\b|on the original device: |Expected object of device type \w+ but got device type|should be either on cpu or on the same device|cannot be accessed from Triton \(cpu tensor|located on different GPUs|Expected object of backend \w+ but got backend|is on (?:CPU|cpu), but expected (?:it|them) to be on|Expected a '\w+' device type for generator but found|Passed CPU tensor to MPS op|Tensor on device \S+ is not on the expected device",
                0.85,
            ),
        ),
        (
            "If device_map=\"auto\" spread the model over several GPUs, train it in one process, or load it whole on each rank's own GPU (device_map={'': local_rank}).",
            "Move the batch to the model's device, and create tensors in forward on that device.",
        ),
        explanation="One is on {first}, another on {second}.",
    ),
    Cause(
        "fsdp_device_mismatch",
        "FSDP found the model on a GPU other than the rank's own.",
        (
            sign(
                r"Inconsistent compute_device and device_id: (?P<first>\S+) vs (?P<second>\S+)|Inconsistent compute device and `device_id`",
                0.97,
            ),
        ),
        (
            'Do not load a model for FSDP with device_map="auto" or quantized by default: both put all of it on the first GPU.',
            "Call torch.cuda.set_device(local_rank) before you create the model. For 4 bits, use one process, DDP or ZeRO-2.",
        ),
        changes={"method": "lora", "quantization": "none"},
    ),
    Cause(
        "zero3_parameter_not_gathered",
        "A weight that ZeRO-3 partitions was used without being gathered: it has no elements.",
        (
            sign(r"'weight' must be 2-D", 0.85),
            sign(r"index -?\d+ is out of bounds for dimension 0 with size 0", 0.7, inside=r"deepspeed|zero"),
            sign(r"'status': 'NOT_AVAILABLE'|assert param\.ds_status == ZeroParamStatus\.AVAILABLE", 0.85),
            sign(r"The size of tensor [ab] \(0\) must match the size of tensor [ab] \(\d+\)", 0.9, when=_SHARDED),
            sign(r"The size of tensor [ab] \(0\) must match the size of tensor [ab] \(\d+\)", 0.7),
            sign(
                r"(?:mat1|mat2|self|weight).*(?:shape|size)s? .*\b(?:x0|\[0\])|shape '\[[\d, -]+\]' is invalid for input of size 0|shape '\[-1, 0\]' is invalid for input",
                0.8,
                when=_SHARDED,
            ),
            sign(r"Padding_idx must be within num_embeddings", 0.75, inside=r"deepspeed|embedding"),
        ),
        (
            "Read or change weights inside `with deepspeed.zero.GatheredParameters([weight], modifier_rank=0)`; resize embeddings the same way.",
            "Create TrainingArguments (with the DeepSpeed file) before you load the model, and use a transformers version that knows ZeRO-3 for this model.",
            "ZeRO-2 does not partition weights: it avoids the error if the model fits.",
        ),
        changes={"strategy": "zero2"},
    ),
    Cause(
        "zero3_partitioned_load",
        "Weights were loaded into a model that ZeRO-3 has already partitioned: there its tensors are empty.",
        (
            sign(
                r"size mismatch for (?P<name>[\w.]+): copying a param with shape torch\.Size\(\[[^\]]*\]\).{0,40}shape in current model is torch\.Size\(\[0\]\)",
                0.98,
            ),
        ),
        (
            "Load with from_pretrained after TrainingArguments with the DeepSpeed file was created (it gathers the weights), not with load_state_dict.",
            "Or load inside `with deepspeed.zero.GatheredParameters(list(model.parameters()), modifier_rank=0)`.",
        ),
        explanation="{name} has shape [0] in the model.",
    ),
    Cause(
        "adapter_saved_empty",
        "The file contains empty weights: under ZeRO-3 they were saved without being gathered.",
        (sign(r"size mismatch for (?P<name>[\w.]+): copying a param with shape torch\.Size\(\[0\]\)", 0.98),),
        (
            "The trained weights are still in the checkpoint: `python zero_to_fp32.py . OUTPUT` in the checkpoint's folder collects them.",
            "In later runs set stage3_gather_16bit_weights_on_model_save (zero3_save_16bit_model in accelerate) to true.",
        ),
        explanation="{name} has shape [0] in the file.",
    ),
    Cause(
        "zero3_device_map",
        "ZeRO-3 cannot be combined with device_map or low_cpu_mem_usage.",
        (sign(r"DeepSpeed Zero-3 is not compatible with `?(?:low_cpu_mem_usage|passing a `?device_map)", 0.98),),
        (
            "Remove device_map and low_cpu_mem_usage: ZeRO-3 places the weights itself. For a quantized model, use ZeRO-2 or DDP with device_map={'': local_rank}.",
        ),
    ),
    Cause(
        "device_map_distributed",
        'A model that device_map="auto" spread over the GPUs cannot be trained by several processes.',
        (sign(r"You can't train a model that has been loaded with `device_map='auto'` in any distributed mode", 0.96),),
        (
            "Load it whole on each process's own GPU: device_map={'': local_rank}. If it does not fit on one GPU, remove device_map and use ZeRO-3 or FSDP.",
            "Or train in one process: start the script with python, or accelerate launch --num_processes=1.",
        ),
    ),
    Cause(
        "fsdp_mixed_dtype",
        "FSDP was given weights of different dtypes in one unit, or quantized weights that are stored as integers.",
        (
            sign(
                r"Must flatten tensors with (?:uniform|the same) `?dtype`? but got (?P<first>[\w.]+) and (?P<second>[\w.]+)",
                0.97,
            ),
            sign(r"Cannot flatten integer dtype tensors", 0.95),
            sign(r"FSDP expects uniform (?:original parameter )?dtype", 0.95),
        ),
        (
            "Load the whole model in one dtype, with the adapter too (for 4 bits: bnb_4bit_quant_storage equal to the compute dtype, and autocast_adapter_dtype=False).",
            "FSDP2 (fsdp_version: 2 in accelerate 1.6 and later) accepts mixed dtypes.",
        ),
        explanation="One is {first}, another {second}.",
    ),
    Cause(
        "fsdp_mixed_requires_grad",
        "FSDP was given frozen and trainable weights in one unit.",
        (sign(r"(?:FlatParameter` requires|Must flatten tensors with) uniform `?requires_grad", 0.98),),
        (
            "Set use_orig_params true (fsdp_use_orig_params), or wrap the adapters' modules on their own (peft.utils.other.fsdp_auto_wrap_policy).",
            "FSDP2 (fsdp_version: 2) has no such limit.",
        ),
    ),
    Cause(
        "fsdp_wrap_class_missing",
        "FSDP finds no module of the class that it should wrap.",
        (
            sign(
                r"Could not find the transformer layer class(?: to wrap in the model| (?P<name>\w+) in the model)?",
                0.97,
            ),
        ),
        (
            "Set fsdp_transformer_layer_cls_to_wrap to the class of the model's layers (for Llama: LlamaDecoderLayer), or leave it out: transformers then takes it from the model.",
        ),
    ),
    Cause(
        "dtensor_mixed",
        "A sharded weight (DTensor) met a plain tensor in one operation.",
        (
            sign(r"got mixed torch\.Tensor and DTensor", 0.97),
            sign(
                r"aten\.[\w.]+: (?:expected|in-place operations that require) .*DTensor|Expected DTensor,? but got", 0.8
            ),
        ),
        (
            "Shard or replicate the whole model alike: call fully_shard on the root module too, after adapters and new embeddings are added.",
            "Where code uses a weight directly (clipping, merging, a custom loss), take weight.full_tensor() or weight.to_local(); or use FSDP1 (fsdp_version: 1).",
        ),
    ),
    Cause(
        "no_sync_refused",
        "Gradient accumulation without synchronization is not possible with ZeRO-2 and ZeRO-3.",
        (
            sign(
                r"no_sync context manager is incompatible with gradient partitioning logic of ZeRO stage (?P<stage>\d)",
                0.98,
            ),
        ),
        (
            "Install accelerate 1.3 or newer and transformers 4.48 or newer, or DeepSpeed 0.16.3 or older; or use ZeRO-1.",
        ),
    ),
    Cause(
        "zero3_inflight_parameters",
        "Under ZeRO-3 the modules of the model ran in another order than in the step before.",
        (sign(r"still have inflight params|tracing error at step \d+", 0.93),),
        (
            "A mixture of experts chooses other experts each step: mark its block as a leaf (deepspeed.utils.set_z3_leaf_modules), as newer accelerate versions do by themselves.",
            "Generating or evaluating inside a training step needs unwrap_model_for_generation (trl). ZeRO-2 does not have this limit.",
        ),
        changes={"strategy": "zero2"},
    ),
)
