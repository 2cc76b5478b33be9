"""Every setting of a training run, once: its type, default, bounds and the sentence that explains it.

The form, the command line, the YAML format, the checks and docs/configuration.md are all derived from `RunConfig`.
A new setting is one line in it. Nothing here imports torch.
"""

from enum import StrEnum
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from training.deepspeed_check import canonical


class Task(StrEnum):
    SFT = "sft"
    PRETRAINING = "pretraining"
    SEQ2SEQ = "seq2seq"
    DPO = "dpo"
    KTO = "kto"
    ORPO = "orpo"
    REWARD = "reward"
    CLASSIFICATION = "classification"

    @property
    def pairs(self) -> bool:
        """Whether it learns from a chosen and a rejected answer to each prompt."""
        return self in (Task.DPO, Task.ORPO, Task.REWARD)

    @property
    def generates(self) -> bool:
        """Whether its model writes text, and can answer held-out rows."""
        return self not in (Task.REWARD, Task.CLASSIFICATION)


class PreferenceLoss(StrEnum):
    """Losses of trl's DPOTrainer that need nothing but a pair."""

    SIGMOID = "sigmoid"
    HINGE = "hinge"
    IPO = "ipo"
    APO_ZERO = "apo_zero"
    APO_DOWN = "apo_down"
    SPPO_HARD = "sppo_hard"
    NCA_PAIR = "nca_pair"
    BCO_PAIR = "bco_pair"


class Method(StrEnum):
    LORA = "lora"
    QLORA = "qlora"
    FULL = "full"
    # PEFT's others, by its own names; their options are in docs/methods.md.
    ADALORA = "adalora"
    ADAPTION_PROMPT = "adaption_prompt"
    BEFT = "beft"
    BOFT = "boft"
    C3A = "c3a"
    CARTRIDGE = "cartridge"
    DEFT = "deft"
    DELORA = "delora"
    FOURIERFT = "fourierft"
    FROD = "frod"
    GLORA = "glora"
    GRALORA = "gralora"
    HIRA = "hira"
    HRA = "hra"
    IA3 = "ia3"
    LILY = "lily"
    LN_TUNING = "ln_tuning"
    LOHA = "loha"
    LOKR = "lokr"
    MISS = "miss"
    OFT = "oft"
    OSF = "osf"
    P_TUNING = "p_tuning"
    PEANUT = "peanut"
    PREFIX_TUNING = "prefix_tuning"
    PROMPT_TUNING = "prompt_tuning"
    PSOFT = "psoft"
    PVERA = "pvera"
    RANDLORA = "randlora"
    ROAD = "road"
    SHIRA = "shira"
    SUPERTUNING = "supertuning"
    TINYLORA = "tinylora"
    TRAINABLE_TOKENS = "trainable_tokens"
    UNILORA = "unilora"
    VBLORA = "vblora"
    VERA = "vera"
    WAVEFT = "waveft"

    @property
    def adapts(self) -> bool:
        """Whether an adapter is trained beside frozen weights."""
        return self is not Method.FULL

    @property
    def is_lora(self) -> bool:
        """Whether the settings of LoRA apply."""
        return self in (Method.LORA, Method.QLORA)


class LoraInit(StrEnum):
    DEFAULT = "default"
    GAUSSIAN = "gaussian"
    ORTHOGONAL = "orthogonal"
    PISSA = "pissa"
    PISSA_NITER_4 = "pissa_niter_4"
    PISSA_NITER_16 = "pissa_niter_16"
    OLORA = "olora"
    MICA = "mica"
    LOFTQ = "loftq"

    @property
    def changes_weights(self) -> bool:
        """Whether the first matrices are taken out of the model's own weights."""
        return self.value.startswith(("pissa", "olora"))

    @property
    def reads_weights(self) -> bool:
        """Whether the first matrices follow from whole weights."""
        return self.changes_weights or self in (LoraInit.MICA, LoraInit.LOFTQ)


class Strategy(StrEnum):
    SINGLE = "single"
    DDP = "ddp"
    ZERO0 = "zero0"
    ZERO1 = "zero1"
    ZERO2 = "zero2"
    ZERO3 = "zero3"
    FSDP = "fsdp"

    @property
    def zero_stage(self) -> int | None:
        """The DeepSpeed ZeRO stage, or None where DeepSpeed does not run."""
        return int(self.value[-1]) if self.value.startswith("zero") else None


class Precision(StrEnum):
    AUTO = "auto"
    BF16 = "bf16"
    FP16 = "fp16"
    FP32 = "fp32"


class Quantization(StrEnum):
    NONE = "none"
    NF4 = "4bit"
    INT8 = "8bit"


class Packing(StrEnum):
    AUTO = "auto"
    NONE = "none"
    PADDING_FREE = "padding_free"
    PACKED = "packed"


class BatchOrder(StrEnum):
    SHUFFLED = "shuffled"
    BY_LENGTH = "by_length"


class Attention(StrEnum):
    AUTO = "auto"
    EAGER = "eager"
    SDPA = "sdpa"
    FLASH_2 = "flash_attention_2"
    FLASH_3 = "flash_attention_3"
    FLEX = "flex_attention"

    @property
    def flash(self) -> bool:
        """Whether it is a kernel of the FlashAttention packages, which compute in 16 bits on a GPU."""
        return self in (Attention.FLASH_2, Attention.FLASH_3)


class Checkpointing(StrEnum):
    NONE = "none"
    SELECTIVE = "selective"
    FULL = "full"
    OFFLOADED = "offloaded"


class Probe(StrEnum):
    AUTO = "auto"
    ON = "on"
    OFF = "off"


class OnOutOfMemory(StrEnum):
    FAIL = "fail"
    ASK = "ask"
    STEP_DOWN = "step_down"


class Offload(StrEnum):
    NONE = "none"
    CPU = "cpu"
    NVME = "nvme"


class Scheduler(StrEnum):
    LINEAR = "linear"
    COSINE = "cosine"
    CONSTANT = "constant"
    CONSTANT_WITH_WARMUP = "constant_with_warmup"
    COSINE_WITH_RESTARTS = "cosine_with_restarts"
    POLYNOMIAL = "polynomial"
    INVERSE_SQRT = "inverse_sqrt"
    WSD = "wsd"
    COSINE_WITH_MIN_LR = "cosine_with_min_lr"
    REDUCE_ON_PLATEAU = "reduce_on_plateau"


class OptimizerName(StrEnum):
    ADAMW = "adamw"
    ADAMW_8BIT = "adamw_8bit"
    PAGED_ADAMW_8BIT = "paged_adamw_8bit"
    PAGED_ADAMW_32BIT = "paged_adamw_32bit"
    ADAMW_TORCHAO_8BIT = "adamw_torchao_8bit"
    ADAMW_TORCHAO_4BIT = "adamw_torchao_4bit"
    ADAMW_ANYPRECISION = "adamw_anyprecision"
    ADAFACTOR = "adafactor"
    LION = "lion"
    LION_8BIT = "lion_8bit"
    MUON = "muon"
    SGD = "sgd"

    @property
    def paged(self) -> bool:
        """Whether the state is in memory that the GPU pages to the host."""
        return self.value.startswith("paged_")


class Interval(StrEnum):
    STEPS = "steps"
    EPOCH = "epoch"


class Group(StrEnum):
    """The parts of the form, in their order."""

    MODEL = "Model and data"
    METHOD = "Method"
    STRATEGY = "Strategy and memory"
    OPTIMIZATION = "Optimization"
    REPORTING = "Evaluation, logging and checkpoints"


def setting(default: Any, sentence: str, group: Group, *, advanced: bool = False, label: str = "", **bounds: Any) -> Any:
    """A field of RunConfig. `advanced` settings are folded away in the form; `label` overrides the one made of the name."""
    extra: dict[str, Any] = {"group": group.value, "advanced": advanced, "label": label}
    return Field(default, description=sentence, json_schema_extra=extra, **bounds)


def _steps_or_fraction(value: Any) -> Any:
    """An interval or amount: a fraction below 1, or a whole number from 1 up."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return value
    if number >= 1 and number != int(number):
        raise ValueError("must be a fraction below 1 or a whole number from 1 up")
    return int(number) if number >= 1 or number == 0 else number


def _checkpointing(value: Any) -> Any:
    """Older configurations say true or false."""
    words = {"true": "full", "false": "none"}
    return words.get(str(value).strip().lower(), value)


def _blank_to_none(value: Any) -> Any:
    return None if isinstance(value, str) and not value.strip() else value


def _slice(value: Any) -> Any:
    """The first rows: a percentage, a share below 1 or a number of rows, kept as text."""
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


def _options(value: Any) -> Any:
    """Options as the text `name=value, name=value`; a file may give them as a mapping."""
    if isinstance(value, dict):
        from training.methods import written

        value = written({str(name): one for name, one in value.items()})
    return _blank_to_none(value)


DeepSpeedText = Annotated[str | None, BeforeValidator(canonical)]
Amount = Annotated[int | float, BeforeValidator(_steps_or_fraction)]
CheckpointingChoice = Annotated[Checkpointing, BeforeValidator(_checkpointing)]
Text = Annotated[str | None, BeforeValidator(_blank_to_none)]
OptionalFloat = Annotated[float | None, BeforeValidator(_blank_to_none)]
Slice = Annotated[str | None, BeforeValidator(_slice)]
OptionalInt = Annotated[int | None, BeforeValidator(_blank_to_none)]
OptionalAmount = Annotated[int | float | None, BeforeValidator(_steps_or_fraction), BeforeValidator(_blank_to_none)]
Options = Annotated[str | None, BeforeValidator(_options)]


class RunConfig(BaseModel):
    """What a person asks of a run. Immutable; a run stores it as it was given."""

    model_config = ConfigDict(extra="forbid", frozen=True, str_strip_whitespace=True, allow_inf_nan=False)

    name: str = setting("", "What this run is called in the history; left empty, model and data name it.", Group.MODEL, max_length=120)
    model: str = setting(..., "A local folder with config.json and safetensors weights, or a hub id such as Qwen/Qwen3-0.6B.", Group.MODEL, min_length=1)
    revision: Text = setting(None, "Branch, tag or commit of a hub model; empty takes its main branch.", Group.MODEL, advanced=True)
    task: Task = setting(Task.SFT, "What is learned. sft: to answer prompts and chats. pretraining: whole texts. seq2seq: the targets of an encoder-decoder such as T5. dpo, orpo: to prefer chosen to rejected answers; kto: from answers labelled wanted or not. reward: to score answers. classification: the class of a text.", Group.MODEL)
    data: str = setting(..., "Training data: a file (JSON, JSONL, CSV, TSV, Parquet, text, .gz) or the id of an uploaded data set.", Group.MODEL, min_length=1)
    columns: Text = setting(None, "Which columns hold what, where the data's format is not found by itself: prompt=question, completion=answers.0.text; empty takes the mapping saved with the data set.", Group.MODEL, advanced=True)
    validation_data: Text = setting(None, "Held-out data: a file or data set id; empty takes the share below from the training data.", Group.MODEL)
    eval_split: Amount = setting(0.05, "Rows held out for evaluation where no validation data is given: a share below 1 or a number of rows; 0 holds out none.", Group.MODEL, ge=0)
    stratify_by: Text = setting(None, "Column of the training data by whose values the held-out rows are drawn: each value gives the same share of its rows.", Group.MODEL, advanced=True)
    data_slice: Slice = setting(None, "Only the first rows of the training data: a percentage such as 1%, a share below 1 or a number of rows; empty takes all.", Group.MODEL, advanced=True)
    max_samples: OptionalInt = setting(None, "At most this many rows of the training data, drawn by the seed; empty takes all.", Group.MODEL, advanced=True, ge=1)
    streaming: bool = setting(False, "Read and tokenize rows while training runs, shuffled through a buffer of 10,000: for JSONL and Parquet too large to tokenize first. The first rows are held out.", Group.MODEL, advanced=True)
    max_length: int = setting(1024, "Longest sequence in tokens; what is longer is cut off at the end.", Group.MODEL, ge=8, le=1_048_576)
    max_target_length: OptionalInt = setting(None, "seq2seq: longest target in tokens; empty takes max length, which then holds for the source alone.", Group.MODEL, advanced=True, ge=2, le=1_048_576)
    chat_template_kwargs: Options = setting(None, "Arguments of the model's chat template as name=value, name=value, such as enable_thinking=false; serve the model with the same.", Group.MODEL, label="Chat template arguments", advanced=True)
    train_on_prompt: bool = setting(False, "Compute the loss on the prompt's tokens too, not on the answer alone.", Group.MODEL, advanced=True)

    method: Method = setting(Method.LORA, "lora trains small low-rank matrices beside the frozen weights; qlora the same beside weights held in 4 or 8 bits; full trains every weight; the others are PEFT's methods, with options of their own (docs/methods.md).", Group.METHOD)
    method_options: Options = setting(None, "The method's own options as name=value, name=value, such as r=8, layers_to_transform=[0, 1]; docs/methods.md lists those of each method.", Group.METHOD)
    quantization: Quantization = setting(Quantization.NONE, "How frozen weights are held: 4bit (NF4) takes an eighth of fp32's memory, 8bit (LLM.int8) a quarter; none with qlora means 4bit.", Group.METHOD)
    double_quantization: bool = setting(True, "4bit: quantise the scales too, which saves another 0.4 bits a weight.", Group.METHOD, advanced=True)
    lora_r: int = setting(16, "Rank of the LoRA matrices: more learns more and costs more memory.", Group.METHOD, label="LoRA r", ge=1, le=1024)
    lora_alpha: int = setting(32, "LoRA scale: the update is multiplied by alpha / r (alpha / sqrt(r) with rsLoRA).", Group.METHOD, label="LoRA alpha", ge=1, le=4096)
    lora_dropout: float = setting(0.0, "Share of the LoRA input dropped at random while training.", Group.METHOD, label="LoRA dropout", ge=0, lt=1)
    target_modules: str = setting("auto", "Modules that get the adapter: auto (PEFT's choice for the architecture, else all-linear), all-linear, names separated by commas, or a regular expression that whole names match.", Group.METHOD, min_length=1)
    use_rslora: bool = setting(False, "Rank-stabilised LoRA: scales by alpha / sqrt(r), steadier at high rank.", Group.METHOD, label="rsLoRA", advanced=True)
    use_dora: bool = setting(False, "DoRA: learns magnitude and direction apart; often better at low rank, slower.", Group.METHOD, label="DoRA", advanced=True)
    lora_init: LoraInit = setting(LoraInit.DEFAULT, "How LoRA begins: default (B = 0), gaussian or orthogonal; pissa (pissa_niter_N is quicker), olora and mica take their matrices from the weights; loftq fits what 4bit has lost.", Group.METHOD, label="LoRA initialisation", advanced=True)
    loraplus_lr_ratio: OptionalFloat = setting(None, "LoRA+: B learns at this many times A's learning rate, mostly 2 to 16; empty trains both alike.", Group.METHOD, label="LoRA+ ratio", advanced=True, ge=1, le=1024)
    modules_to_save: Text = setting(None, "Modules that train whole beside the adapter or the trainable layers, and are saved: names separated by commas, such as embed_tokens, lm_head.", Group.METHOD, advanced=True)
    trainable_layers: OptionalInt = setting(None, "full: only this many last transformer layers train; embeddings, the layers before, the final norm and the output head are frozen. Empty trains everything.", Group.METHOD, advanced=True, ge=1, le=10_000)

    strategy: Strategy = setting(Strategy.SINGLE, "single: one device. ddp: a copy per device. zero1, zero2, zero3 shard optimizer, + gradients, + parameters across devices; zero0 is DeepSpeed without sharding. fsdp is PyTorch's FSDP2: all three sharded, a layer gathered at a time.", Group.STRATEGY)
    num_processes: int = setting(1, "Number of training processes, one per device.", Group.STRATEGY, label="Processes", ge=1, le=1024)
    offload_optimizer: Offload = setting(Offload.NONE, "Keep the optimizer's state in host memory (cpu; ZeRO 1 to 3) or on a fast disk (nvme; ZeRO-3): less device memory, slower.", Group.STRATEGY)
    offload_param: Offload = setting(Offload.NONE, "Keep the parameters in host memory (cpu; ZeRO-3, and FSDP, which keeps gradients and optimizer there too) or on a fast disk (nvme; ZeRO-3): least device memory, slowest.", Group.STRATEGY, label="Offload parameters")
    nvme_path: Text = setting(None, "Folder on a fast local disk that offloading to nvme writes to.", Group.STRATEGY, label="NVMe folder", advanced=True)
    zero_quantized_weights: bool = setting(False, "ZeRO++ (ZeRO-3): gather parameters in 8 bits, half the traffic of bf16.", Group.STRATEGY, label="Quantized weights (qwZ)", advanced=True)
    zero_quantized_gradients: bool = setting(False, "ZeRO++ (ZeRO-3): reduce gradients in 4 bits within nodes and 8 between them, a quarter of the traffic.", Group.STRATEGY, label="Quantized gradients (qgZ)", advanced=True)
    zero_hpz_partition_size: int = setting(1, "ZeRO++ (ZeRO-3): processes that hold a second copy of the parameters among them, mostly the GPUs of one node, so that the backward pass gathers there; 1 holds none.", Group.STRATEGY, label="Second shards (hpZ)", advanced=True, ge=1, le=1024)
    zero_quantized_nontrainable_weights: bool = setting(False, "ZeRO-3 with an adapter: keep the frozen weights in 8 bits and gather them so.", Group.STRATEGY, label="Quantized frozen weights", advanced=True)
    sequence_parallel_size: int = setting(1, "Processes that share each sequence (Ulysses, under ZeRO): every one holds its part of the tokens, so that activations of long sequences fit; 1 shares none.", Group.STRATEGY, label="Sequence parallelism", advanced=True, ge=1, le=1024)
    deepspeed_config: DeepSpeedText = setting(None, "A DeepSpeed JSON of your own, as text or the path of a file: taken as it is, with auto filled in from the settings. docs/deepspeed.md explains its keys.", Group.STRATEGY, label="DeepSpeed JSON", advanced=True)
    precision: Precision = setting(Precision.AUTO, "Number format of the forward and backward pass; auto takes bf16 where the GPU has it, fp16 on older GPUs, fp32 on CPU.", Group.STRATEGY)
    weights_precision: Precision = setting(Precision.AUTO, "The format that weights are kept in. auto keeps frozen ones in the precision of computing, and those that all train in fp32; fp32 takes twice the memory of 16 bits; bf16 halves a full fine-tuning's weights and gradients, and loses updates smaller than a 256th of a weight.", Group.STRATEGY, advanced=True)
    tf32: bool = setting(False, "Let fp32 matrix products round their factors to 10 bits (NVIDIA Ampere and later): several times faster.", Group.STRATEGY, label="TF32", advanced=True)
    memory_limit: OptionalAmount = setting(None, "Most memory that a process may take for its tensors, on its GPU or on CPU: a fraction below 1 of what there is, or MiB; beyond it the run is out of memory, as on a smaller device. Empty sets no limit.", Group.STRATEGY, advanced=True, gt=0)
    gradient_checkpointing: CheckpointingChoice = setting(Checkpointing.NONE, "Recompute activations in the backward pass: full does so in every layer (least memory, about a third slower), selective in every second one, offloaded in every one and keeps the layers' inputs in host memory.", Group.STRATEGY)
    probe: Probe = setting(Probe.AUTO, "Before the first step, take two steps on the largest batch of the run on every rank and undo them, so that what would not fit is known at once. auto does so on a GPU.", Group.STRATEGY, advanced=True)
    on_out_of_memory: OnOutOfMemory = setting(OnOutOfMemory.STEP_DOWN, "When device memory runs out. step_down: go on by itself from the last checkpoint with what takes less and keeps the global batch: half the micro batch and twice the accumulation, then recomputed activations, before the first checkpoint also ZeRO. ask: fail and propose that. fail: fail.", Group.STRATEGY)
    packing: Packing = setting(Packing.AUTO, "padding_free lays the rows of a batch end to end instead of padding them: the same steps and losses, faster. packed fills sequences of max_length with whole rows by best fit, and the micro batch counts those. auto is padding_free where the model keeps rows apart, else none.", Group.STRATEGY)
    attention: Attention = setting(Attention.AUTO, "The attention kernel; auto takes FlashAttention where it is installed and fits, else PyTorch's SDPA, which goes through a batch row by row on CPU.", Group.STRATEGY, advanced=True)
    batch_order: BatchOrder = setting(BatchOrder.SHUFFLED, "by_length brings rows of like length together, which leaves little to pad; the batches come in random order.", Group.STRATEGY, advanced=True)
    torch_compile: bool = setting(False, "Compile the model with torch.compile: faster steps after minutes of compiling, and again for new shapes.", Group.STRATEGY, label="torch.compile", advanced=True)

    optimizer: OptimizerName = setting(OptimizerName.ADAMW, "adamw keeps two fp32 moments a weight; 8bit, torchao and paged save most of that memory, adafactor nearly all, sgd and lion one moment; anyprecision keeps all in bf16 with Kahan sums; muon orthogonalises the updates of matrices.", Group.OPTIMIZATION)
    lr_scheduler: Scheduler = setting(Scheduler.LINEAR, "How the learning rate falls after the warmup.", Group.OPTIMIZATION, label="Scheduler")
    learning_rate: float = setting(2e-4, "Peak learning rate; LoRA likes 1e-4 to 1e-3, full fine-tuning 1e-5 to 5e-5.", Group.OPTIMIZATION, gt=0, le=1)
    warmup: Amount = setting(0.03, "Steps over which the learning rate rises from 0: a share of the run below 1 or a number of steps.", Group.OPTIMIZATION, ge=0)
    epochs: float = setting(3.0, "Passes over the training data; max steps, where set, counts instead.", Group.OPTIMIZATION, gt=0, le=10_000)
    max_steps: OptionalInt = setting(None, "Stop after this many optimizer steps; empty trains for the epochs above.", Group.OPTIMIZATION, ge=1)
    micro_batch_size: int = setting(4, "Rows per device in one forward pass: the first knob for memory.", Group.OPTIMIZATION, ge=1, le=65_536)
    gradient_accumulation_steps: int = setting(1, "Forward passes per optimizer step; global batch = micro batch x accumulation x processes.", Group.OPTIMIZATION, label="Gradient accumulation", ge=1, le=65_536)
    min_lr_ratio: float = setting(0.1, "cosine_with_min_lr, wsd and reduce_on_plateau end at this share of the peak learning rate.", Group.OPTIMIZATION, label="Lowest learning rate", advanced=True, ge=0, lt=1)
    decay_share: float = setting(0.1, "wsd (warmup, stable, decay): the last share of the run, in which the learning rate falls.", Group.OPTIMIZATION, advanced=True, gt=0, le=1)
    lr_cycles: int = setting(1, "cosine_with_restarts: how many times the learning rate falls from the peak to 0.", Group.OPTIMIZATION, label="Cosine cycles", advanced=True, ge=1, le=1000)
    plateau_patience: int = setting(2, "reduce_on_plateau: evaluations without a lower loss before the learning rate is reduced.", Group.OPTIMIZATION, advanced=True, ge=0, le=1000)
    plateau_factor: float = setting(0.5, "reduce_on_plateau: the learning rate is multiplied by this.", Group.OPTIMIZATION, advanced=True, gt=0, lt=1)
    weight_decay: float = setting(0.0, "Decoupled weight decay (L2 regularisation with sgd).", Group.OPTIMIZATION, advanced=True, ge=0, le=1)
    adam_beta1: float = setting(0.9, "Decay of the first moment (AdamW, Lion).", Group.OPTIMIZATION, label="Adam beta 1", advanced=True, ge=0, lt=1)
    adam_beta2: float = setting(0.999, "Decay of the second moment (AdamW, Lion).", Group.OPTIMIZATION, label="Adam beta 2", advanced=True, ge=0, lt=1)
    adam_epsilon: float = setting(1e-8, "Added to AdamW's denominator.", Group.OPTIMIZATION, advanced=True, gt=0, le=0.1)
    momentum: float = setting(0.9, "Momentum of sgd and muon (0.95 by Muon's authors).", Group.OPTIMIZATION, advanced=True, ge=0, lt=1)
    neftune_noise_alpha: OptionalFloat = setting(None, "NEFTune: uniform noise of this strength on the embeddings while training, often 5 to 15; empty adds none.", Group.OPTIMIZATION, label="NEFTune alpha", advanced=True, gt=0, le=1000)
    max_grad_norm: float = setting(1.0, "Gradients are clipped to this norm; 0 clips none.", Group.OPTIMIZATION, label="Gradient clipping", advanced=True, ge=0)
    seed: int = setting(42, "Seed of data order, initial LoRA weights and dropout.", Group.OPTIMIZATION, ge=0, le=2**32 - 1)

    beta: float = setting(0.1, "dpo, kto: how strongly the model is held to the one it started from; orpo: weight of the odds ratio.", Group.OPTIMIZATION, advanced=True, gt=0, le=10)
    dpo_loss: PreferenceLoss = setting(PreferenceLoss.SIGMOID, "dpo: which loss is taken of the pair's margin; sigmoid is DPO's own.", Group.OPTIMIZATION, label="DPO loss", advanced=True)
    desirable_weight: float = setting(1.0, "kto: weight of wanted answers; raise it where they are fewer than the unwanted.", Group.OPTIMIZATION, advanced=True, gt=0, le=1000)
    undesirable_weight: float = setting(1.0, "kto: weight of unwanted answers.", Group.OPTIMIZATION, advanced=True, gt=0, le=1000)

    logging_steps: Amount = setting(1, "Log metrics every so many steps, or after this share of the run.", Group.REPORTING, gt=0)
    eval_strategy: Interval = setting(Interval.STEPS, "Evaluate by steps (below) or at the end of each epoch.", Group.REPORTING, label="Evaluate by", advanced=True)
    eval_steps: Amount = setting(0.1, "Evaluate every so many steps, or after this share of the run; 0 evaluates at the end only.", Group.REPORTING, ge=0)
    save_strategy: Interval = setting(Interval.STEPS, "Write checkpoints by steps (below) or at the end of each epoch.", Group.REPORTING, label="Save by", advanced=True)
    save_steps: Amount = setting(0.25, "Write a checkpoint every so many steps, or after this share of the run; 0 writes none before the end.", Group.REPORTING, ge=0)
    save_total_limit: int = setting(2, "Checkpoints kept; older ones are deleted once a newer one is whole.", Group.REPORTING, label="Checkpoints kept", advanced=True, ge=1, le=1000)
    early_stopping_patience: OptionalInt = setting(None, "End the run after this many evaluations in a row that did not lower the evaluation loss; empty trains to the end.", Group.REPORTING, advanced=True, ge=1, le=10_000)
    early_stopping_threshold: float = setting(0.0, "An evaluation loss counts as lower where it is by more than this.", Group.REPORTING, advanced=True, ge=0)
    load_best_at_end: bool = setting(False, "The result is the checkpoint with the lowest evaluation loss, which is written at that evaluation and kept, in the place of the last step's weights.", Group.REPORTING, label="Keep the best", advanced=True)
    merge_adapter: bool = setting(False, "Also write the adapter merged into its base model, in the base's own format, as a model that needs no PEFT.", Group.REPORTING, advanced=True)
    push_to_hub: Text = setting(None, "Push the result to this repository of the hub, owner/name, when the run has finished; the token is HF_TOKEN in the worker's environment.", Group.REPORTING, advanced=True, pattern=r"^[\w.-]+/[\w.-]+$", max_length=96)
    push_private: bool = setting(True, "A repository that the push makes is private.", Group.REPORTING, label="Private repository", advanced=True)
    answer_rows: int = setting(0, "Held-out rows answered by the model before and after training, compared with the expected answers (exact match, token F1, ROUGE); 0 answers none.", Group.REPORTING, ge=0)
    max_new_tokens: int = setting(128, "Longest answer in tokens when held-out rows are answered.", Group.REPORTING, advanced=True, ge=1, le=32_768)

    @model_validator(mode="before")
    @classmethod
    def _of_older_configurations(cls, values: Any) -> Any:
        """auto_batch_size is on_out_of_memory now; it was off unless a person turned it on."""
        if not isinstance(values, dict) or "auto_batch_size" not in values:
            return values
        kept = {name: value for name, value in values.items() if name != "auto_batch_size"}
        return kept if str(values["auto_batch_size"]).lower() == "true" else {"on_out_of_memory": "fail"} | kept

    @property
    def global_batch_size(self) -> int:
        """Rows per optimizer step, all processes together."""
        return self.micro_batch_size * self.gradient_accumulation_steps * self.num_processes // self.sequence_parallel_size

    @property
    def recomputes(self) -> bool:
        """Whether activations are computed again in the backward pass."""
        return self.gradient_checkpointing is not Checkpointing.NONE

    @property
    def quantized(self) -> Quantization:
        """How frozen weights are really held."""
        implied = self.method is Method.QLORA and self.quantization is Quantization.NONE
        return Quantization.NF4 if implied else self.quantization

    @property
    def holds_out(self) -> bool:
        """Whether there are held-out rows."""
        return bool(self.validation_data or self.eval_split)

    @property
    def evaluates(self) -> bool:
        """Whether the run is evaluated while it trains."""
        return self.holds_out and (self.eval_strategy is Interval.EPOCH or bool(self.eval_steps))

    @property
    def title(self) -> str:
        """The run's name, or one made of model and data."""
        return self.name or f"{_last_part(self.model)} on {_last_part(self.data)}"


def _last_part(path: str) -> str:
    return path.rstrip("/").rsplit("/", 1)[-1]

