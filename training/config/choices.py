"""The choices of settings, and the groups of the form. No torch."""

from enum import StrEnum


class Reasoning(StrEnum):
    """What becomes of the reasoning in answers before the last question."""

    TEMPLATE = "template"
    DROP = "drop"
    KEEP = "keep"


class LossOn(StrEnum):
    ALL = "all"
    LAST = "last"
    FIELD = "field"


class TemplateCheck(StrEnum):
    STRICT = "strict"
    WARN = "warn"


class PreferenceLoss(StrEnum):
    """Losses of trl's DPOTrainer that need only preference pairs."""

    SIGMOID = "sigmoid"
    HINGE = "hinge"
    IPO = "ipo"
    APO_ZERO = "apo_zero"
    APO_DOWN = "apo_down"
    SPPO_HARD = "sppo_hard"
    NCA_PAIR = "nca_pair"
    BCO_PAIR = "bco_pair"


class Generation(StrEnum):
    """What draws the samples that a run trains on."""

    MODEL = "model"
    VLLM = "vllm"


class PolicyLoss(StrEnum):
    """Losses of trl's GRPOTrainer that differ in what they average over, and how they clip."""

    DAPO = "dapo"
    GRPO = "grpo"
    DR_GRPO = "dr_grpo"
    BNPO = "bnpo"
    CISPO = "cispo"


class ImportanceSamplingLevel(StrEnum):
    """Whose ratio of new to old probability weights a token: its own, or that of its sample."""

    TOKEN = "token"  # noqa: S105 - not a password
    SEQUENCE = "sequence"


class ScaleRewards(StrEnum):
    """What the deviation of a sample's reward from the mean of its group is divided by."""

    GROUP = "group"
    BATCH = "batch"
    NONE = "none"


class Method(StrEnum):
    LORA = "lora"
    QLORA = "qlora"
    FULL = "full"
    # PEFT's other methods, under PEFT's names; docs/methods.md lists their options.
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
        """True if it trains an adapter and freezes the model's weights."""
        return self is not Method.FULL

    @property
    def is_lora(self) -> bool:
        """True if the settings of LoRA apply."""
        return self in (Method.LORA, Method.QLORA)

    @property
    def in_peft(self) -> str:
        """PEFT's name of the adapter, in lower case."""
        return (Method.LORA if self.is_lora else self).value


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
        """True if the initial matrices are subtracted from the model's weights."""
        return self.value.startswith(("pissa", "olora"))

    @property
    def has_own_base(self) -> bool:
        """True if the adapter belongs to weights that the run has made from the model's."""
        return self.changes_weights or self is LoraInit.LOFTQ

    @property
    def reads_weights(self) -> bool:
        """True if the initial matrices are computed from complete weights."""
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
        """The ZeRO stage, or None for a strategy without DeepSpeed."""
        return int(self.value[-1]) if self.value.startswith("zero") else None


class EngineName(StrEnum):
    """What places a run on machines; `auto` is the installation's first engine."""

    AUTO = "auto"
    LOCAL = "local"
    SLURM = "slurm"

    @property
    def options(self) -> str:
        """The setting with the options of its jobs, if a setting has this name."""
        return f"{self.value}_options"


class Precision(StrEnum):
    AUTO = "auto"
    BF16 = "bf16"
    FP16 = "fp16"
    FP32 = "fp32"


class Quantization(StrEnum):
    NONE = "none"
    NF4 = "4bit"
    INT8 = "8bit"

    def packed_bytes(self, *, double: bool = False) -> float:
        """Bytes of a quantized weight, with its share of a scale per 64; with `double`, scales are quantized, too.

        Raises:
            ValueError: nothing is quantized.
        """
        match self:
            case Quantization.NONE:
                raise ValueError("Weights that are not quantized have the bytes of their dtype.")
            case Quantization.NF4:
                return 0.5 + (0.0159 if double else 0.0625)
            case Quantization.INT8:
                return 1.0


class Packing(StrEnum):
    AUTO = "auto"
    NONE = "none"
    PADDING_FREE = "padding_free"
    PACKED = "packed"


class BatchOrder(StrEnum):
    SHUFFLED = "shuffled"
    BY_LENGTH = "by_length"


class MixBy(StrEnum):
    ROWS = "rows"
    TOKENS = "tokens"


class MixUntil(StrEnum):
    """The end of an epoch over several data sets; the names are those of datasets.interleave_datasets."""

    FIRST_EXHAUSTED = "first_exhausted"
    ALL_EXHAUSTED = "all_exhausted"


class Attention(StrEnum):
    AUTO = "auto"
    EAGER = "eager"
    SDPA = "sdpa"
    FLASH_2 = "flash_attention_2"
    FLASH_3 = "flash_attention_3"
    FLEX = "flex_attention"

    @property
    def flash(self) -> bool:
        """True for kernels of the FlashAttention packages, which need a GPU and 16 bits."""
        return self in (Attention.FLASH_2, Attention.FLASH_3)


class Checkpointing(StrEnum):
    NONE = "none"
    SELECTIVE = "selective"
    FULL = "full"
    OFFLOADED = "offloaded"


class ChunkedLoss(StrEnum):
    AUTO = "auto"
    ON = "on"
    OFF = "off"


class Probe(StrEnum):
    AUTO = "auto"
    ON = "on"
    OFF = "off"


class OnOutOfMemory(StrEnum):
    FAIL = "fail"
    ASK = "ask"
    STEP_DOWN = "step_down"


class OnDivergence(StrEnum):
    STOP = "stop"
    STEP_BACK = "step_back"


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


class Wanted(StrEnum):
    """What the forecast can solve for: the most that fits, or the fewest or cheapest GPUs."""

    MAX_LENGTH = "max_length"
    MICRO_BATCH_SIZE = "micro_batch_size"
    GPUS = "gpus"
    LORA_R = "lora_r"
    GPU = "gpu"


class Interval(StrEnum):
    STEPS = "steps"
    EPOCH = "epoch"


class Group(StrEnum):
    """The groups of the form, in order."""

    MODEL = "Model and data"
    METHOD = "Method"
    STRATEGY = "Strategy and memory"
    OPTIMIZATION = "Optimization"
    REPORTING = "Evaluation, logging and checkpoints"
