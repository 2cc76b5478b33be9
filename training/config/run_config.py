"""Every setting of a training run: its type, default, bounds and help sentence.

The form, the command line, the YAML format, the checks and docs/configuration.md are derived from `RunConfig`.
A new setting is one line in this class. No torch.
"""

import math
import re
from collections.abc import Container
from functools import cache
from typing import Annotated, Any

from annotated_types import MaxLen
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationInfo,
    field_validator,
    model_validator,
)

from training.config import data_sets, name_values, slurm_options, value_size
from training.config.choices import (
    Attention,
    BatchOrder,
    Checkpointing,
    ChunkedLoss,
    EngineName,
    Generation,
    Group,
    ImportanceSamplingLevel,
    Interval,
    LoraInit,
    LossOn,
    Method,
    MixBy,
    MixUntil,
    Offload,
    OnDivergence,
    OnOutOfMemory,
    Packing,
    PolicyLoss,
    Precision,
    PreferenceLoss,
    Probe,
    Quantization,
    Reasoning,
    ScaleRewards,
    Scheduler,
    Strategy,
    TemplateCheck,
)
from training.config.data_sets import Source, has_weights, last_part, set_names, sources
from training.config.optimizer_name import OptimizerName
from training.config.task import Task, described
from training.deepspeed_file.check import canonical

Changes = dict[str, Any]


def setting(default: Any, sentence: str, group: Group, *, basic: int = 0, advanced: bool = False, label: str = "", **bounds: Any) -> Any:
    """A field of RunConfig. `basic` is its place among the settings that the form shows first; the others are in folded groups,
    `advanced` ones last. `label` defaults to one made from the name."""
    extra: dict[str, Any] = {"group": group.value, "basic": basic, "advanced": advanced, "label": label}
    return Field(default, description=sentence, json_schema_extra=extra, **bounds)


def _steps_or_fraction(value: Any) -> Any:
    """A fraction below 1, or an integer from 1 up."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return value
    if not math.isfinite(number):
        raise ValueError("must be a fraction below 1 or an integer from 1 up")
    if number >= 1 and number != int(number):
        raise ValueError("must be a fraction below 1 or an integer from 1 up")
    return int(number) if number >= 1 or number == 0 else number


def _checkpointing(value: Any) -> Any:
    """Maps true and false, from older configurations, to full and none."""
    choices = {"true": "full", "false": "none"}
    return choices.get(str(value).strip().lower(), value)


def _blank_to_none(value: Any) -> Any:
    return None if isinstance(value, str) and not value.strip() else value


def _revision(value: str | None) -> str | None:
    """The name of a branch or tag as git allows it, or a commit: it becomes a part of paths and URLs."""
    if value is not None and (not re.fullmatch(r"\w[\w.@+/-]{0,200}", value) or ".." in value or "//" in value):
        raise ValueError("must be the name of a branch or tag, or a commit")
    return value


def _slice(value: Any) -> Any:
    """A percentage, a share below 1 or a number of rows, normalized as text."""
    text = "" if value is None else str(value).strip()
    if not text:
        return None
    percent = text.endswith("%")
    try:
        number = float(text.removesuffix("%"))
    except ValueError:
        number = 0.0
    if not 0 < number <= (100 if percent else 1e15) or not (percent or number < 1 or number == int(number)):
        raise ValueError("must be a percentage up to 100%, a share below 1 or a number of rows")
    return f"{number:g}%" if percent else f"{number:g}" if number < 1 else f"{number:.0f}"


NEAR_DUPLICATES = "near_duplicates"
"""The value of `group_by` that groups rows with nearly the same text; every other value is the name of a column."""
OLDER = {"group_by": None}
"""The values of settings in configurations that were stored before these settings existed, where their default is another one."""
_WHOLE = 60  # settings; one that a person has written names fewer, and one that was stored names all


def _group_by(value: Any) -> Any:
    return None if value == "none" else _blank_to_none(value)


def _options(value: Any) -> Any:
    """Options as the text `name=value, name=value`; accepts a mapping from a file."""
    if isinstance(value, dict):
        value = name_values.written({str(name): option for name, option in value.items()})
    return _blank_to_none(value)


DataText = Annotated[str, BeforeValidator(data_sets.canonical)]
OptionalData = Annotated[str | None, BeforeValidator(data_sets.canonical_validation), BeforeValidator(_blank_to_none)]
DeepSpeedText = Annotated[str | None, BeforeValidator(canonical)]
Amount = Annotated[int | float, BeforeValidator(_steps_or_fraction)]
CheckpointingChoice = Annotated[Checkpointing, BeforeValidator(_checkpointing)]
Text = Annotated[str | None, BeforeValidator(_blank_to_none)]
GroupBy = Annotated[str | None, BeforeValidator(_group_by)]
OptionalFloat = Annotated[float | None, BeforeValidator(_blank_to_none)]
Slice = Annotated[str | None, BeforeValidator(_slice)]
OptionalInt = Annotated[int | None, BeforeValidator(_blank_to_none)]
OptionalAmount = Annotated[int | float | None, BeforeValidator(_steps_or_fraction), BeforeValidator(_blank_to_none)]
Options = Annotated[str | None, BeforeValidator(_options)]
# White space at the ends of a template is part of what it writes.
Template = Annotated[str | None, StringConstraints(strip_whitespace=False), BeforeValidator(_blank_to_none)]
Revision = Annotated[str | None, AfterValidator(_revision), BeforeValidator(_blank_to_none)]
SlurmOptions = Annotated[str | None, BeforeValidator(slurm_options.canonical)]
AnswerMetrics = Annotated[str, BeforeValidator(name_values.canonical_metrics)]
Trackers = Annotated[str | None, BeforeValidator(name_values.canonical_trackers)]


class RunConfig(BaseModel):
    """The settings of a run, as the user gave them. Immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True, str_strip_whitespace=True, allow_inf_nan=False)

    name: str = setting("", "Run name. Default: the names of model and data.", Group.MODEL, max_length=120)
    model: str = setting(..., "Model folder, or a hub id such as Qwen/Qwen3-0.6B. A folder has config.json and safetensors weights.", Group.MODEL, basic=2, min_length=1, max_length=4_096)
    revision: Revision = setting(None, "Branch, tag or commit of a hub model. Default: its main branch.", Group.MODEL, advanced=True, max_length=300)
    task: Task = setting(Task.SFT, f"Training objective. {described()}", Group.MODEL, basic=3)
    data: DataText = setting(..., "Training data: a data set id or a file. Files are JSON, JSONL, CSV, TSV or text (also as .gz), Parquet or Arrow. To mix several, a list of them (docs/mixing.md).", Group.MODEL, basic=1, min_length=1, max_length=100_000)
    columns: Text = setting(None, "Column mapping, needed only if the format is not detected. Example: prompt=question, completion=answers.0.text. Default: the mapping saved with the data set.", Group.MODEL, advanced=True, max_length=4_096)
    validation_data: OptionalData = setting(None, "Evaluation data: a file, a data set id or a list of them. If empty, a share of the training data is held out (see Eval split).", Group.MODEL, max_length=100_000)
    eval_split: Amount = setting(0.05, "Rows held out for evaluation if there is no validation data: a share below 1 or a number of rows. 0: none.", Group.MODEL, ge=0)
    stratify_by: Text = setting(None, "Column for stratified sampling: the same share of rows is held out for each of its values.", Group.MODEL, advanced=True, max_length=200)
    group_by: GroupBy = setting(NEAR_DUPLICATES, "Rows that stay on one side of the split. near_duplicates: rows with nearly the same text. none: each row stands by itself. Otherwise a column: rows with the same value.", Group.MODEL, advanced=True, label="Keep rows together by", max_length=200)
    exclude_leaked_rows: bool = setting(False, "Evaluate without the held-out rows that are near duplicates of training rows.", Group.MODEL, label="Leave leaked rows out", advanced=True)
    mix_by: MixBy = setting(MixBy.ROWS, "What the weights of several data sets divide: rows, or tokens after truncation.", Group.MODEL, advanced=True)
    mix_until: MixUntil = setting(MixUntil.FIRST_EXHAUSTED, "End of an epoch over several data sets with weights. first_exhausted: when the first set is used up; the others continue with new rows in the next epoch. all_exhausted: when every row was used; smaller sets repeat.", Group.MODEL, label="Epoch of a mixture", advanced=True)
    data_slice: Slice = setting(None, "Use only the first rows of the training data (of each data set): a percentage such as 1%, a share below 1, or a number of rows. Default: all.", Group.MODEL, advanced=True, max_length=40)
    max_samples: OptionalInt = setting(None, "Maximum number of training rows (of each data set), sampled with the seed. Default: all.", Group.MODEL, advanced=True, ge=1)
    streaming: bool = setting(False, "Tokenize rows during training, for JSONL and Parquet files too large to tokenize first. Shuffles through a buffer of 10,000 rows; the first rows are held out.", Group.MODEL, advanced=True)
    max_length: int = setting(1024, "Maximum sequence length in tokens; longer rows are truncated.", Group.MODEL, basic=8, ge=8, le=1_048_576)
    max_target_length: OptionalInt = setting(None, "seq2seq: maximum length of the target in tokens; max length then applies to the source only. Default: max length.", Group.MODEL, advanced=True, ge=2, le=1_048_576)
    chat_template: Template = setting(None, "Chat template in place of the model's: chatml, llama3, zephyr, gemma, mistral, a .jinja file, or its text. Saved with the result. docs/templates.md explains it.", Group.MODEL, advanced=True, max_length=65_536)
    chat_template_kwargs: Options = setting(None, "Arguments of the model's chat template. Example: enable_thinking=false. Use the same ones for inference.", Group.MODEL, label="Chat template arguments", advanced=True, max_length=8_192)
    reasoning_history: Reasoning = setting(Reasoning.TEMPLATE, "Reasoning (thinking) in answers before the last question. template: as the chat template writes it, which most drop. drop: removed. keep: written as in a last answer.", Group.MODEL, label="Reasoning in earlier turns", advanced=True)
    loss_on: LossOn = setting(LossOn.ALL, "Assistant turns that carry loss. all: every one. last: the last one of each row. field: those whose field (see Loss field) is not false or 0.", Group.MODEL, label="Turns with loss", advanced=True)
    loss_field: str = setting("train", "Field of a message, or of a row, with true or false (or 0): whether it carries loss. Example: train (axolotl), weight (OpenAI).", Group.MODEL, advanced=True, min_length=1, max_length=120)
    weight_field: Text = setting(None, "Field of a message, or of a row, with its loss weight from 0 up; a token's weight is their product. The loss is divided by the sum of the weights. Default: no weights.", Group.MODEL, label="Loss weight field", advanced=True, max_length=120)
    template_check: TemplateCheck = setting(TemplateCheck.STRICT, "Check of rendered rows before Start (docs/templates.md). strict: errors prevent the start. warn: they are shown only.", Group.MODEL, label="Chat template check", advanced=True)
    train_on_prompt: bool = setting(False, "Compute the loss on the prompt tokens too, not only on the answer.", Group.MODEL, advanced=True)

    rewards: str = setting("exact_match", "grpo: what scores a sample, separated by commas, each with a weight: exact_match, json_valid * 0.5. A name that is not built in is a function of reward_code. docs/grpo.md lists them.", Group.MODEL, max_length=20_000)
    reward_code: Template = setting(None, "grpo: a Python file, or its text, with functions that score samples: f(prompt, answer, expected) or f(prompt, answer, expected, row).", Group.MODEL, max_length=50_000)
    num_generations: int = setting(8, "grpo: samples for each prompt, which are compared with each other. Their number divides the global batch size.", Group.MODEL, label="Samples per prompt", ge=2, le=1024)
    max_completion_length: int = setting(512, "grpo, distill: maximum length of a sample in tokens.", Group.MODEL, ge=1, le=1_048_576)
    temperature: float = setting(1.0, "grpo, distill: temperature of sampling. Below 1 the samples differ less.", Group.MODEL, label="Sampling temperature", advanced=True, gt=0, le=10)
    generation: Generation = setting(Generation.MODEL, "grpo, distill: what draws the samples. model: forward passes of the training processes. vllm: vLLM, one beside each process on its device, or the server of vllm_url. docs/grpo.md compares them.", Group.MODEL, label="Samples drawn by")
    vllm_url: Text = setting(None, "Address of a running vLLM server, such as http://HOST:8000, in place of one beside each process. It needs to read this run's folder. Default: none.", Group.MODEL, label="vLLM server", advanced=True, max_length=2000)
    vllm_memory: float = setting(0.3, "Share of a device's memory for the vLLM beside each process: its copy of the weights, and the keys and values of samples.", Group.MODEL, label="vLLM's memory", advanced=True, gt=0, lt=1)
    vllm_sleep: bool = setting(True, "Free the GPU memory of vLLM while the model trains: its weights wait in host memory. Off: each step is faster by the copies, and the memory is taken all the time.", Group.MODEL, label="vLLM sleeps", advanced=True)
    baseline_prompts: int = setting(16, "grpo, distill: prompts for which the untrained model draws samples before the first step. If nothing can be learned from them, the run says why (grpo: and ends). 0: none.", Group.MODEL, ge=0, le=4096)
    stop_after_baseline: bool = setting(False, "grpo, distill: stop after these samples, so that you can read them. Resume trains.", Group.MODEL)
    teacher: Text = setting(None, "distill: the model whose probabilities this one learns: a model folder, a hub id, the folder of an adapter, or the id of a run, whose result it is then. It needs the same tokenizer.", Group.MODEL, max_length=4_096)
    teacher_quantization: Quantization = setting(Quantization.NONE, "distill: format of the teacher's weights: 4bit (NF4) takes 1/8 of the memory of fp32, 8bit (LLM.int8) 1/4.", Group.MODEL, advanced=True)

    method: Method = setting(Method.LORA, "Training method. lora: trains low-rank matrices, the base model is frozen. qlora: LoRA on a base model quantized to 4 or 8 bits. full: trains all weights. docs/methods.md lists PEFT's other methods.", Group.METHOD, basic=4)
    method_options: Options = setting(None, "Options of the method. Example: r=8, layers_to_transform=[0, 1]. docs/methods.md lists them.", Group.METHOD, max_length=8_192)
    quantization: Quantization = setting(Quantization.NONE, "Format of the frozen weights: 4bit (NF4) takes 1/8 of the memory of fp32, 8bit (LLM.int8) 1/4. With qlora, none means 4bit.", Group.METHOD)
    double_quantization: bool = setting(True, "4bit: quantize the scales too; saves another 0.4 bits per weight.", Group.METHOD, advanced=True)
    lora_r: int = setting(16, "Rank of the LoRA matrices. Typical: 8 to 64; a higher rank learns more and takes more memory.", Group.METHOD, label="LoRA r", ge=1, le=1024)
    lora_alpha: int = setting(32, "LoRA scaling: the update is multiplied by alpha / r (rsLoRA: alpha / sqrt(r)). Typical: r to 2r.", Group.METHOD, label="LoRA alpha", ge=1, le=4096)
    lora_dropout: float = setting(0.0, "Dropout on the input of the LoRA matrices. Typical: 0 to 0.1.", Group.METHOD, label="LoRA dropout", ge=0, lt=1)
    target_modules: str = setting("auto", "Modules that get an adapter: auto (PEFT's choice for the architecture, else all-linear), all-linear, names separated by commas, or a regular expression that matches full names.", Group.METHOD, min_length=1, max_length=20_000)
    use_rslora: bool = setting(False, "Rank-stabilized LoRA: scales by alpha / sqrt(r); more stable at high rank.", Group.METHOD, label="rsLoRA", advanced=True)
    use_dora: bool = setting(False, "DoRA: trains magnitude and direction separately; often better at low rank, slower.", Group.METHOD, label="DoRA", advanced=True)
    lora_init: LoraInit = setting(LoraInit.DEFAULT, "Initialization of LoRA. default: B = 0. gaussian, orthogonal: random. pissa (pissa_niter_N: faster), olora, mica: from the model's weights. loftq: from the error of 4-bit quantization.", Group.METHOD, label="LoRA initialization", advanced=True)
    init_adapter: Text = setting(None, "Adapter whose weights this run continues: a folder with adapter_config.json, or the id of a run on this machine. target_modules auto means its own. Default: a new adapter.", Group.METHOD, label="Initial adapter", advanced=True, max_length=4_096)
    loraplus_lr_ratio: OptionalFloat = setting(None, "LoRA+: learning rate of B (and of DoRA's magnitudes) divided by that of A. Typical: 2 to 16. Default: the same rate for all.", Group.METHOD, label="LoRA+ ratio", advanced=True, ge=1, le=1024)
    modules_to_save: Text = setting(None, "Modules that train fully and are saved with the adapter, separated by commas. Example: embed_tokens, lm_head.", Group.METHOD, advanced=True, max_length=20_000)
    trainable_layers: OptionalInt = setting(None, "full: train only this many of the last transformer layers, and a head that the task adds; all other weights are frozen, except those in modules_to_save. Default: train everything.", Group.METHOD, advanced=True, ge=1, le=10_000)

    strategy: Strategy = setting(Strategy.SINGLE, "Distribution across devices. single: one device. ddp: a copy on each. zero1, zero2, zero3 shard the optimizer state, then gradients, then parameters; zero0: DeepSpeed without sharding. fsdp: PyTorch FSDP2, shards all three.", Group.STRATEGY, basic=5)
    num_processes: int = setting(1, "Number of training processes, one per device.", Group.STRATEGY, basic=9, label="Processes", ge=1, le=1024)
    num_machines: int = setting(1, "Number of machines (nodes) that share the processes equally; each needs processes / machines devices.", Group.STRATEGY, label="Machines", ge=1, le=1024)
    min_machines: OptionalInt = setting(None, "Machines to continue with while others are missing, with the same global batch size. Default: waits until num_machines are there.", Group.STRATEGY, label="Fewest machines", advanced=True, ge=1, le=1024)
    engine: EngineName = setting(EngineName.AUTO, "What places the run on machines. local: a worker of this installation. slurm: a job of a Slurm cluster. docs/scale.md explains them.", Group.STRATEGY, advanced=True)
    slurm_options: SlurmOptions = setting(None, "Options of the Slurm job in place of the installation's, as name=value. Example: partition=gpu, time=12:00:00, qos=high. docs/scale.md lists them.", Group.STRATEGY, label="Slurm options", advanced=True, max_length=2_000)
    offload_optimizer: Offload = setting(Offload.NONE, "Keep the optimizer state in host memory (cpu, with ZeRO 1 to 3) or on a fast disk (nvme, with ZeRO-3). Saves device memory, slower.", Group.STRATEGY)
    offload_param: Offload = setting(Offload.NONE, "Keep the parameters in host memory (cpu, with ZeRO-3; with FSDP also gradients and optimizer state) or on a fast disk (nvme, with ZeRO-3). Least device memory, slowest.", Group.STRATEGY, label="Offload parameters")
    nvme_path: Text = setting(None, "Folder on a fast local disk for NVMe offload.", Group.STRATEGY, label="NVMe folder", advanced=True, max_length=4_096)
    zero_quantized_weights: bool = setting(False, "ZeRO++ with ZeRO-3: gather parameters in 8 bits; half the traffic of bf16.", Group.STRATEGY, label="Quantized weights (qwZ)", advanced=True)
    zero_quantized_gradients: bool = setting(False, "ZeRO++ with ZeRO-3: reduce gradients in 4 bits within a node and 8 bits between nodes; a quarter of the traffic.", Group.STRATEGY, label="Quantized gradients (qgZ)", advanced=True)
    zero_hpz_partition_size: int = setting(1, "ZeRO++ with ZeRO-3: number of processes that share a second copy of the parameters, usually the GPUs of one node. 1: no second copy.", Group.STRATEGY, label="Second shards (hpZ)", advanced=True, ge=1, le=1024)
    zero_quantized_nontrainable_weights: bool = setting(False, "ZeRO-3 with an adapter: store and gather the frozen weights in 8 bits.", Group.STRATEGY, label="Quantized frozen weights", advanced=True)
    sequence_parallel_size: int = setting(1, "Number of processes that split each sequence (Ulysses, with ZeRO), to fit activations of long sequences. 1: no split.", Group.STRATEGY, label="Sequence parallelism", advanced=True, ge=1, le=1024)
    deepspeed_config: DeepSpeedText = setting(None, "Your own DeepSpeed JSON, as text or a file path. Lathe replaces every \"auto\" by the value from the settings. docs/deepspeed.md explains the keys.", Group.STRATEGY, label="DeepSpeed JSON", advanced=True, max_length=50_000)
    precision: Precision = setting(Precision.AUTO, "Number format of the forward and backward pass. auto: bf16 if the GPU supports it, fp16 on older GPUs, fp32 on CPU.", Group.STRATEGY)
    weights_precision: Precision = setting(Precision.AUTO, "Number format of the stored weights. auto: fp32 for full fine-tuning, else the precision above. bf16 halves the memory of full fine-tuning, but loses updates smaller than 1/256 of a weight.", Group.STRATEGY, advanced=True)
    tf32: bool = setting(False, "Use TF32 for fp32 matrix products (NVIDIA Ampere and later): several times faster, with a 10-bit mantissa.", Group.STRATEGY, label="TF32", advanced=True)
    memory_limit: OptionalAmount = setting(None, "Memory limit of each process for its tensors, on GPU or CPU: a fraction below 1 of the device's memory, or MiB. Above it the run is out of memory. Default: no limit.", Group.STRATEGY, advanced=True, gt=0)
    gradient_checkpointing: CheckpointingChoice = setting(Checkpointing.NONE, "Recompute activations in the backward pass. full: every layer; least memory, about a third slower. selective: every second layer. offloaded: every layer, with the layers' inputs in host memory.", Group.STRATEGY)
    chunked_loss: ChunkedLoss = setting(ChunkedLoss.AUTO, "Apply the output head to some hundred tokens with loss at a time, so that the logits of all tokens are never in memory at once; same loss and gradients. auto: if the vocabulary has 32,000 tokens or more and the model's head supports it.", Group.STRATEGY)
    offload_activations: bool = setting(False, "Move activations to host memory after the forward pass of a layer and back before its backward pass, without recomputing them. Needs a GPU; slower by the copies over PCIe.", Group.STRATEGY, advanced=True)
    optimizer_in_backward: bool = setting(False, "full, on one device: update each weight as soon as its gradient is complete and free the gradient, so that all gradients are never in memory at once. Needs max_grad_norm 0 and gradient_accumulation_steps 1.", Group.STRATEGY, advanced=True)
    probe: Probe = setting(Probe.AUTO, "Before training, run two steps on the largest batch and undo them, to detect out of memory at once. auto: on GPUs only.", Group.STRATEGY, advanced=True)
    on_out_of_memory: OnOutOfMemory = setting(OnOutOfMemory.STEP_DOWN, "Action when the run is out of memory. step_down: resume from the last checkpoint with half the micro batch and twice the accumulation, then gradient checkpointing, then (before the first checkpoint) ZeRO; the global batch stays the same. ask: fail and propose these settings. fail: fail.", Group.STRATEGY)
    packing: Packing = setting(Packing.AUTO, "Layout of a batch. padding_free: concatenates rows instead of padding them; same losses, faster. packed: fills sequences of max_length with complete rows, and the micro batch counts sequences. auto: padding_free if the model supports it, else none.", Group.STRATEGY)
    attention: Attention = setting(Attention.AUTO, "Attention kernel. auto: FlashAttention if it is installed and supports the run, else PyTorch's SDPA.", Group.STRATEGY, advanced=True)
    batch_order: BatchOrder = setting(BatchOrder.SHUFFLED, "by_length: batches rows of similar length, in random order; less padding.", Group.STRATEGY, advanced=True)
    torch_compile: bool = setting(False, "Compile the model with torch.compile: faster steps, after minutes of compilation for each new shape.", Group.STRATEGY, label="torch.compile", advanced=True)

    optimizer: OptimizerName = setting(OptimizerName.ADAMW, "Optimizer. adamw stores two fp32 moments per weight. 8bit, torchao and paged variants save most of that memory, adafactor nearly all; sgd and lion store one moment. anyprecision stores everything in bf16 with Kahan summation. muon orthogonalizes the updates of matrices.", Group.OPTIMIZATION)
    lr_scheduler: Scheduler = setting(Scheduler.LINEAR, "Learning rate schedule after the warmup.", Group.OPTIMIZATION, label="Scheduler")
    learning_rate: float = setting(2e-4, "Peak learning rate. Typical: 1e-4 to 1e-3 for LoRA, 1e-5 to 5e-5 for full fine-tuning.", Group.OPTIMIZATION, basic=6, gt=0, le=1)
    warmup: Amount = setting(0.03, "Warmup of the learning rate from 0 (wsd: from its lowest learning rate): a share of the run below 1, or a number of steps. Typical: 0.03 to 0.1.", Group.OPTIMIZATION, ge=0)
    epochs: float = setting(3.0, "Number of passes over the training data. Ignored if max steps is set.", Group.OPTIMIZATION, basic=7, gt=0, le=10_000)
    max_steps: OptionalInt = setting(None, "Number of optimizer steps. Default: as many as the epochs take.", Group.OPTIMIZATION, ge=1)
    micro_batch_size: int = setting(4, "Rows per device in one forward pass. Lower it first if memory is short.", Group.OPTIMIZATION, ge=1, le=65_536)
    gradient_accumulation_steps: int = setting(1, "Forward passes per optimizer step. Global batch size = micro batch size x accumulation x processes.", Group.OPTIMIZATION, label="Gradient accumulation", ge=1, le=65_536)
    on_divergence: OnDivergence = setting(OnDivergence.STOP, "Action when training diverges, that is, when the loss or gradient is not finite for divergence steps in a row. stop: the run ends, and its result is its best checkpoint. step_back: first resume once from the last checkpoint with a tenth of the learning rate.", Group.OPTIMIZATION, advanced=True)
    divergence_steps: int = setting(3, "Steps in a row without a finite loss or gradient after which training has diverged.", Group.OPTIMIZATION, advanced=True, ge=1, le=10_000)
    min_lr_ratio: float = setting(0.1, "cosine_with_min_lr, wsd, reduce_on_plateau: final learning rate as a share of the peak.", Group.OPTIMIZATION, label="Lowest learning rate", advanced=True, ge=0, lt=1)
    decay_share: float = setting(0.1, "wsd (warmup, stable, decay): share of the run in which the learning rate decays.", Group.OPTIMIZATION, advanced=True, gt=0, le=1)
    lr_cycles: int = setting(1, "cosine_with_restarts: number of cycles from the peak to 0.", Group.OPTIMIZATION, label="Cosine cycles", advanced=True, ge=1, le=1000)
    plateau_patience: int = setting(2, "reduce_on_plateau: evaluations without a lower loss before the learning rate is reduced.", Group.OPTIMIZATION, advanced=True, ge=0, le=1000)
    plateau_factor: float = setting(0.5, "reduce_on_plateau: factor by which the learning rate is reduced.", Group.OPTIMIZATION, advanced=True, gt=0, lt=1)
    weight_decay: float = setting(0.0, "Decoupled weight decay (sgd: L2 regularization). Typical: 0 to 0.1.", Group.OPTIMIZATION, advanced=True, ge=0, le=1)
    adam_beta1: float = setting(0.9, "Decay rate of the first moment (AdamW, Lion).", Group.OPTIMIZATION, label="Adam beta 1", advanced=True, ge=0, lt=1)
    adam_beta2: float = setting(0.999, "Decay rate of the second moment (AdamW, Lion).", Group.OPTIMIZATION, label="Adam beta 2", advanced=True, ge=0, lt=1)
    adam_epsilon: float = setting(1e-8, "Constant added to AdamW's denominator.", Group.OPTIMIZATION, advanced=True, gt=0, le=0.1)
    momentum: float = setting(0.9, "Momentum of sgd and muon (Muon's authors use 0.95).", Group.OPTIMIZATION, advanced=True, ge=0, lt=1)
    neftune_noise_alpha: OptionalFloat = setting(None, "NEFTune: strength of uniform noise added to the embeddings. Typical: 5 to 15. Default: no noise.", Group.OPTIMIZATION, label="NEFTune alpha", advanced=True, gt=0, le=1000)
    max_grad_norm: float = setting(1.0, "Maximum gradient norm; larger gradients are clipped. 0: no clipping.", Group.OPTIMIZATION, label="Gradient clipping", advanced=True, ge=0)
    seed: int = setting(42, "Random seed for held-out rows, data order, initialization of adapters and new heads, dropout and samples.", Group.OPTIMIZATION, ge=0, le=2**32 - 1)

    beta: float = setting(0.1, "dpo, kto: strength of the penalty for moving away from the reference model. orpo: weight of the odds ratio beside the likelihood of prompt and chosen answer.", Group.OPTIMIZATION, advanced=True, gt=0, le=10)
    dpo_loss: PreferenceLoss = setting(PreferenceLoss.SIGMOID, "dpo: loss function of the margin between chosen and rejected; sigmoid is the original.", Group.OPTIMIZATION, label="DPO loss", advanced=True)
    desirable_weight: float = setting(1.0, "kto: weight of good answers. Raise it if there are fewer of them than bad answers.", Group.OPTIMIZATION, advanced=True, gt=0, le=1000)
    undesirable_weight: float = setting(1.0, "kto: weight of bad answers.", Group.OPTIMIZATION, advanced=True, gt=0, le=1000)

    num_iterations: int = setting(1, "grpo: optimizer steps on each batch of samples before new ones are drawn. From the second step on, the clipped ratio of new to old probability limits the change.", Group.OPTIMIZATION, label="Steps per batch of samples", ge=1, le=64, advanced=True)
    policy_loss: PolicyLoss = setting(PolicyLoss.DAPO, "grpo: what the loss averages over. dapo, cispo: all tokens of the global batch. grpo: the tokens of each sample, then samples. dr_grpo: max_completion_length instead of a sample's tokens. bnpo: the tokens of each micro batch.", Group.OPTIMIZATION, advanced=True)
    importance_sampling_level: ImportanceSamplingLevel = setting(ImportanceSamplingLevel.TOKEN, "grpo: what has a ratio of new to old probability, which is clipped: each token, or each sample, as in GSPO, whose clips are near 0.0003.", Group.OPTIMIZATION, advanced=True)
    scale_rewards: ScaleRewards = setting(ScaleRewards.GROUP, "grpo: divide the deviation of a reward from its group's mean by the standard deviation of the group, or of the batch, or not at all.", Group.OPTIMIZATION, advanced=True)
    clip_low: float = setting(0.2, "grpo: how far below 1 the ratio of new to old probability of a token may push the loss.", Group.OPTIMIZATION, advanced=True, ge=0, lt=1)
    clip_high: float = setting(0.28, "grpo: how far above 1. cispo: the largest ratio itself, such as 5.", Group.OPTIMIZATION, advanced=True, ge=0, le=100)
    kl_coefficient: float = setting(0.0, "grpo: weight of the KL divergence from the model before training. 0: none. With method full a frozen copy of that model is in memory.", Group.OPTIMIZATION, label="KL coefficient", advanced=True, ge=0, le=10)
    jsd_coefficient: float = setting(1.0, "distill: the loss, a divergence of teacher and model. 1: reverse KL, the model avoids what the teacher finds improbable. 0: forward KL, it covers all that the teacher finds probable. Between: generalized Jensen-Shannon divergence.", Group.OPTIMIZATION, label="JSD coefficient", advanced=True, ge=0, le=1)

    logging_steps: Amount = setting(1, "Interval between logged metrics: steps, or a share of the run below 1.", Group.REPORTING, gt=0)
    report_to: Trackers = setting(None, "Experiment trackers that also receive the metrics, separated by commas: tensorboard, wandb, mlflow, trackio. docs/trackers.md says how the worker signs in to them. Default: none.", Group.REPORTING, label="Report to", advanced=True, max_length=200)
    report_project: str = setting("lathe", "Project (mlflow: experiment) of the run in these trackers.", Group.REPORTING, label="Tracker project", advanced=True, min_length=1, max_length=120)
    eval_strategy: Interval = setting(Interval.STEPS, "Evaluate every eval steps, or at the end of each epoch.", Group.REPORTING, label="Evaluate by", advanced=True)
    eval_steps: Amount = setting(0.1, "Interval between evaluations: steps, or a share of the run below 1. 0: only at the end.", Group.REPORTING, ge=0)
    save_strategy: Interval = setting(Interval.STEPS, "Save a checkpoint every save steps, or at the end of each epoch.", Group.REPORTING, label="Save by", advanced=True)
    save_steps: Amount = setting(0.25, "Interval between checkpoints: steps, or a share of the run below 1. 0: only at the end.", Group.REPORTING, ge=0)
    save_total_limit: int = setting(2, "Number of checkpoints to keep; older ones are deleted.", Group.REPORTING, label="Checkpoints kept", advanced=True, ge=1, le=1000)
    async_save: bool = setting(True, "Asynchronous checkpoints: training stops only while the state is copied to host memory; files are written in the background. Needs host memory for one checkpoint.", Group.REPORTING, label="Asynchronous checkpoints", advanced=True)
    early_stopping_patience: OptionalInt = setting(None, "Stop after this many evaluations in a row without a lower evaluation loss. Default: train to the end.", Group.REPORTING, advanced=True, ge=1, le=10_000)
    early_stopping_threshold: float = setting(0.0, "Minimum decrease of the evaluation loss that counts as lower.", Group.REPORTING, advanced=True, ge=0)
    load_best_at_end: bool = setting(False, "The result is the checkpoint with the lowest evaluation loss instead of the last step; it is saved at that evaluation.", Group.REPORTING, label="Keep the best", advanced=True)
    eval_answers: int = setting(0, "Held-out rows that are answered greedily at evaluations during training, and scored. 0: none.", Group.REPORTING, label="Answers at evaluations", ge=0, le=100_000)
    eval_answers_every: int = setting(1, "Answer them at every n-th evaluation.", Group.REPORTING, label="Answer every", advanced=True, ge=1, le=100_000)
    eval_metrics: AnswerMetrics = setting("exact_match, f1", "Scores of these answers, separated by commas: exact_match, f1, rouge1, rouge2, rougeL.", Group.REPORTING, label="Answer scores", advanced=True, max_length=200)
    merge_adapter: bool = setting(False, "Also save the adapter merged into its base model, as a model that does not need PEFT.", Group.REPORTING, advanced=True)
    push_to_hub: Text = setting(None, "Upload the result to this hub repository (owner/name) when the run finishes. Needs HF_TOKEN in the worker's environment.", Group.REPORTING, advanced=True, pattern=r"^[\w.-]+/[\w.-]+$", max_length=96)
    push_private: bool = setting(True, "Create the hub repository as private.", Group.REPORTING, label="Private repository", advanced=True)
    answer_rows: int = setting(0, "Held-out rows that the model answers before and after training, scored by exact match, token F1 and ROUGE. 0: none.", Group.REPORTING, ge=0)
    verify_rows: int = setting(4, "Rows with which the saved result is compared with the trained model: prompt tokens, greedy answers, logits. 0: none.", Group.REPORTING, advanced=True, ge=0, le=64)
    max_new_tokens: int = setting(128, "Maximum length of these answers in tokens.", Group.REPORTING, advanced=True, ge=1, le=32_768)

    @field_validator("*", mode="before")
    @classmethod
    def _within_limit(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuses a value that is too long before anything parses it."""
        if isinstance(value, str | bytes | list | tuple | dict):
            most = longest(str(info.field_name))
            if value_size.exceeds(value, most):
                raise ValueError(f"has more than {most:,} characters")
        return value

    @model_validator(mode="before")
    @classmethod
    def _replace_auto_batch_size(cls, values: Any) -> Any:
        """Replaces auto_batch_size, which was off by default, by on_out_of_memory."""
        if not isinstance(values, dict) or "auto_batch_size" not in values:
            return values
        others = {name: value for name, value in values.items() if name != "auto_batch_size"}
        return others if str(values["auto_batch_size"]).lower() == "true" else {"on_out_of_memory": "fail"} | others

    @model_validator(mode="before")
    @classmethod
    def _keep_older_values(cls, values: Any) -> Any:
        """Keeps what a stored configuration meant when its settings had other defaults."""
        return OLDER | values if isinstance(values, dict) and len(values) > _WHOLE else values

    @property
    def global_batch_size(self) -> int:
        """Rows per optimizer step over all processes."""
        return self.micro_batch_size * self.gradient_accumulation_steps * self.num_processes // self.sequence_parallel_size

    @property
    def samples_per_prompt(self) -> int:
        """Answers that the model samples to each prompt, in tasks that train on them."""
        return self.num_generations if self.task.traits.rewards_samples else 1

    @property
    def has_reference(self) -> bool:
        """True if its loss compares the model with a reference: with an adapter, the model without it."""
        return self.task.traits.has_reference or (self.task.traits.rewards_samples and self.kl_coefficient > 0)

    @property
    def loads_reference(self) -> bool:
        """True if this reference is a second model in memory: the one before training."""
        return self.has_reference and not self.method.adapts

    @property
    def draws_with_vllm(self) -> bool:
        """True if vLLM draws the samples that it trains on."""
        return self.task.traits.samples and self.generation is Generation.VLLM

    @property
    def has_vllm_beside(self) -> bool:
        """True if each process has a vLLM of its own on its device."""
        return self.draws_with_vllm and not self.vllm_url

    @property
    def iterations(self) -> int:
        """Optimizer steps in a row on each global batch."""
        return self.num_iterations if self.task.traits.rewards_samples else 1

    @property
    def processes_per_machine(self) -> int:
        """Processes on each machine."""
        return self.num_processes // self.num_machines

    @property
    def recomputes(self) -> bool:
        """True if the backward pass recomputes activations."""
        return self.gradient_checkpointing is not Checkpointing.NONE

    @property
    def steps_in_backward(self) -> bool:
        """True if each weight is updated in the backward pass; an adapter's few weights are not."""
        return self.optimizer_in_backward and self.method is Method.FULL

    @property
    def quantized(self) -> Quantization:
        """The format of the frozen weights; method qlora implies 4bit."""
        implied = self.method is Method.QLORA and self.quantization is Quantization.NONE
        return Quantization.NF4 if implied else self.quantization

    @property
    def holds_out(self) -> bool:
        """True if there are held-out rows."""
        return bool(self.validation_data or self.eval_split)

    @property
    def evaluates(self) -> bool:
        """True if the run evaluates during training."""
        return self.holds_out and (self.eval_strategy is Interval.EPOCH or bool(self.eval_steps))

    @property
    def sources(self) -> tuple[Source, ...]:
        """The training data sets, at least one."""
        return sources(self.data)

    @property
    def validation_sources(self) -> tuple[Source, ...]:
        """The data sets of `validation_data`."""
        return sources(self.validation_data)

    @property
    def mixes(self) -> bool:
        """True if training mixes several data sets by weights; several without weights are concatenated."""
        return has_weights(self.data)

    @property
    def title(self) -> str:
        """The run's name; by default "<model> on <data>"."""
        return self.name or f"{last_part(self.model)} on {' + '.join(set_names(self.sources))}"[:120]


def stepped_down(config: RunConfig, changes: Changes) -> RunConfig:
    """`config` with the changed settings of one step down.

    Raises:
        pydantic.ValidationError: a value is not valid for its setting.
    """
    return RunConfig.model_validate(config.model_dump(mode="json") | changes)


def on_gpus(config: RunConfig, gpus: int | None, typed: Container[str] = ()) -> RunConfig:
    """`config` on `gpus` GPUs, unless its processes are among the `typed` settings; on several, the strategy single becomes DDP,
    unless it was typed."""
    if not gpus:
        return config
    changes: Changes = {} if "num_processes" in typed else {"num_processes": gpus}
    several = changes.get("num_processes", config.num_processes) > 1
    if "strategy" not in typed and several and config.strategy is Strategy.SINGLE:
        changes["strategy"] = Strategy.DDP
    return config.model_copy(update=changes)


_OTHERS = 200


@cache
def longest(name: str) -> int:
    """The most characters of a setting as it is given, of which each value in a list or mapping counts as one more."""
    limits = [part.max_length for part in RunConfig.model_fields[name].metadata if isinstance(part, MaxLen)]
    return min(limits, default=_OTHERS)
