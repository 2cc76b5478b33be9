"""Causes of failure: settings, arguments and configuration files of a training program."""

from worker.diagnosis.argument_analysis import is_unknown_setting
from worker.diagnosis.cause import Cause, sign
from worker.diagnosis.conditions import ends_in, within

_REFUSED = (
    r"^(?:ValueError|TypeError|NotImplementedError|AssertionError|\w*ConfigError): (?!.*unexpected keyword argument)\S"
)
_COMBINED = r"^(?:ValueError|NotImplementedError|AssertionError): (?!.*(?:(?:must|should) be an? |<class))\S"
_OF_SETTINGS = r"(?:-packages|/src)/(?!deepspeed/|datasets/)(?!.*configuration_(?:auto|utils))(?:.*(?:training_args\w*|_config|/config|accelerate/utils/dataclasses|quantization_config|hparams/\w+|/arguments?)\.py) "
_OF_TRAINERS = r"(?:-packages|/src)/(?:trl/trainer/\w+_trainer|transformers/trainer)\.py (?:\w+\.)?__init__ "
_OF_LIBRARIES = r"(?:-packages|/src)/(?:transformers|trl|peft|accelerate|datasets|deepspeed|bitsandbytes|torch|unsloth|llamafactory|axolotl|swift)/"
"""Where a library checks its settings: the file and the function that raise the error."""

CAUSES = (
    Cause(
        "settings_unknown",
        "The settings contain names that the training program does not know.",
        (
            sign(r"Some specified arguments are not used by the HfArgumentParser: \[(?P<given>[^\]]*)\]", 0.95),
            sign(r"Some keys are not used by the HfArgumentParser: (?P<given>.*)", 0.95),
            sign(r"error: unrecognized arguments: (?P<given>.+)", 0.93),
            sign(r"ValueError: remaining_argv: (?P<given>.+)", 0.95),
            sign(r"Extra inputs are not permitted", 0.85),
            sign(
                r"TypeError: .*\(\) got an unexpected keyword argument '(?P<given>\w+)'", 0.8, when=is_unknown_setting
            ),
            sign(r"Could not override '(?P<given>[^']+)'", 0.9),
        ),
        (
            "Correct or remove them: each is misspelled, belongs to another version of the program, or to another program.",
            "A command of another version may start with a script that no longer exists (src/train_bash.py): use the start command of the installed version.",
        ),
        explanation="Given: {given}",
    ),
    Cause(
        "settings_invalid",
        "A setting is missing, or has a value that the training program refuses.",
        (
            sign(r"ValidationError: \d+ validation errors? for (?P<kind>\w*(?:[Cc]onfig|[Aa]rg)\w*)", 0.9),
            sign(r"error: argument (?P<kind>[-\w/ ]+): (?:invalid|expected)", 0.93),
            sign(r"\b\w*ConstructorError|ScannerError|yaml\.parser\.ParserError", 0.85),
            sign(r"ValueError: Unknown split (?P<kind>\S+)\. Should be one of", 0.88),
            sign(r"dacite\.exceptions|omegaconf\.errors\.(?!ConfigAttributeError|ConfigKeyError)\w+: ", 0.85),
            sign(r"error: the following arguments are required: (?P<kind>.+)|Truthy value expected: got", 0.93),
            sign(r"ValueError: '?[\w.-]+'? is not a valid (?P<kind>[A-Z]\w+)(?:, please select one of)?", 0.85),
            sign(
                r"ValueError: Bad split: (?P<kind>[^.]+)\. Available splits|BuilderConfig '?(?P<name>[^']+)'? not found\. Available",
                0.88,
            ),
            sign(r"ValueError: Config name is missing\.", 0.8),
            sign(r"\w+ is not supported, only .{1,400} (?:are|is) supported", 0.9),
            sign(
                r"ValueError: Invalid (?P<kind>learning rate|weight_decay value|beta parameter|epsilon value|momentum value|momentum|eps)\b",
                0.9,
            ),
            sign(
                r"TypeError: '[<>]=?' not supported between instances of '(?:int|float|str)' and '(?:str|int|float)'",
                0.75,
                inside=r"optim|training_args",
            ),
            sign(
                r"load_in_4bit and load_in_8bit are both True|can't use 8 bit and 4 bit precision at the same time|load_in_4bit and load_in_8(?:bit)? can't be both",
                0.93,
            ),
            sign(
                r"EarlyStoppingCallback requires|At most one of fp16 and bf16 can be True|You passed both a ref_model and a peft_config|`model` and `ref_model` cannot be the same object",
                0.93,
            ),
            sign(
                r"does not implement __len__, (?:max_steps has to be specified|so the number of training steps)|args\.max_steps must be set to a positive value",
                0.93,
            ),
            sign(
                r"`r` should be a positive integer|ValueError: batch_size should be a positive integer value, but got|does not have a mask token which is necessary for masked language modeling",
                0.85,
            ),
            sign(
                r"Less than two GPU ids were configured|You need to use at least 2 processes to use `--multi_gpu`|You can only use one of `--cpu`",
                0.93,
            ),
            sign(r"Using --\w+ xxx together with --\w+ is not possible|only works in distributed training", 0.9),
            sign(_REFUSED, 0.75, when=ends_in(_OF_SETTINGS)),
            sign(r"^AssertionError: (?P<kind>[\w -]{1,60}) must be (?:specified|set|provided|given)\b", 0.75),
            sign(_COMBINED, 0.65, when=ends_in(_OF_TRAINERS)),
            sign(
                r"^ValueError: .*(?<!type )(?:[Ss]hould|[Mm]ust) be one of|^ValueError: .*(?:[Pp]ossible values are|[Cc]hoose between|expected one of|[Ss]upported values are|must be in \[)",
                0.65,
                when=ends_in(_OF_LIBRARIES),
            ),
        ),
        ("The lines below the error name each setting, its value and what is expected.",),
        explanation="In: {kind}.",
    ),
    Cause(
        "deepspeed_config_mismatch",
        "The DeepSpeed file and the training arguments give different values for the same setting.",
        (
            sign(
                r"Please correct the following DeepSpeed config values that mismatch (?:TrainingArguments|kwargs)", 0.98
            ),
            sign(r"(?P<line>- ds \S+=\S+ vs hf \S+=\S+)", 0.95),
        ),
        ('Set these values in the DeepSpeed file to "auto", so that they are taken from the arguments.',),
        explanation="{line}",
    ),
    Cause(
        "deepspeed_batch_size",
        "The batch sizes in the DeepSpeed file do not fit each other and the number of processes.",
        (
            sign(r"Check batch related parameters\.(?P<numbers>.*)", 0.98),
            sign(r"train_batch_size is not equal to micro_batch_per_gpu", 0.97),
            sign(r"Either train_batch_size or train_micro_batch_size_per_gpu needs to be provided", 0.97),
        ),
        (
            'train_batch_size must equal train_micro_batch_size_per_gpu x gradient_accumulation_steps x processes. Give two of the three, or "auto".',
        ),
    ),
    Cause(
        "deepspeed_config_invalid",
        "DeepSpeed refuses its configuration file.",
        (
            sign(r"ValidationError: \d+ validation errors? for (?P<part>DeepSpeed\w+)", 0.96),
            sign(r"DeepSpeedConfigError: (?P<what>.+)", 0.95),
            sign(r"Expected a string path to an existing deepspeed config, or a dictionary", 0.95),
            sign(
                r"ZeRO[- ]Offload .* (?:is|are) (?:not supported|untested)|You are using ZeRO-Offload with|zero_allow_untested_optimizer",
                0.93,
            ),
            sign(r"(?P<what>`\S+` not found in kwargs\. Please specify.{0,80})", 0.96),
            sign(
                r"(?:specify|create a `Dummy\w+` without specifying) an? (?:scheduler|optimizer) in the config file",
                0.93,
            ),
            sign(
                r"`--mixed_precision` arg cannot be set to|When using `deepspeed_config_file`, the following|requires you to pass at least one of training or evaluation dataloaders",
                0.93,
            ),
            sign(
                r"Can(?:'t find| find neither) `model\.config.{0,80}|Found `optimizer` configured in the DeepSpeed config|fp16 and bf16 modes cannot be simultaneously enabled",
                0.93,
            ),
            sign(
                r"DeepSpeed requires --deepspeed_config|stage3_gather_16bit_weights_on_model_save` in DeepSpeed config is False",
                0.85,
            ),
            sign(
                r"^(?:ValueError|TypeError|NotImplementedError|AssertionError|KeyError): (?P<what>.{1,200})",
                0.75,
                when=ends_in(r"deepspeed/runtime/(?:\w+/)*\w*config\w*\.py "),
            ),
        ),
        (
            "Correct the key that the message names. `lathe check FILE` checks a DeepSpeed file against the installed version.",
        ),
        explanation="{what}",
    ),
    Cause(
        "strategies_conflict",
        "Two settings for the end of the training cannot be used together.",
        (
            sign(r"--load_best_model_at_end requires the save and eval(?:uation)? strategy to match", 0.97),
            sign(
                r"--load_best_model_at_end requires the saving steps to be a (?:round )?multiple of the evaluation steps",
                0.97,
            ),
            sign(
                r"you don't have (?:passed )?an? (?:evaluation dataset|eval_dataset)|Trainer: evaluation requires an eval_dataset|You have set `args\.eval_strategy`.*but you didn't pass an `eval_dataset`",
                0.8,
            ),
        ),
        (
            "Save and evaluate by the same unit (steps or epochs), with save_steps a multiple of eval_steps, and give an evaluation set.",
        ),
    ),
    Cause(
        "wandb_not_logged_in",
        "Weights & Biases is switched on, but no key is set.",
        (
            sign(r"api_key not configured \(no-tty\)", 0.97),
            sign(
                r"^(?:wandb\.(?:sdk\.)?\S*errors\.)?(?:AuthenticationError: |(?:CommError|UsageError): .*(?:\b40[13]\b|[Pp]ermission|log(?:ged)? ?in|API key|api_key))|wandb: ERROR .*(?:login|[Pp]ermission|API key)|API key must (?:be|have) 40",
                0.85,
            ),
        ),
        (
            "Set WANDB_API_KEY or run wandb login; to do without, set report_to to none (WANDB_DISABLED=true in older versions).",
        ),
    ),
    Cause(
        "local_rank_argument",
        "The launcher passes --local-rank, which the script does not accept.",
        (sign(r"(?:error: unrecognized arguments: |HfArgumentParser: \[')--local[-_]rank=\d+", 0.97),),
        (
            "Start with torchrun, which sets the environment variable LOCAL_RANK instead, and read that; torch 2 changed --local_rank to --local-rank.",
        ),
    ),
    Cause(
        "generations_not_divisible",
        "The batch of GRPO is not a multiple of the number of generations for each prompt.",
        (
            sign(
                r"(?:global (?:train|eval) batch size|generation_batch_size) \(.*?\) must be (?:evenly )?divisible by .*num(?:ber of |_)generations",
                0.98,
            ),
            sign(
                r"generation_batch_size \(\d+\) must be divisible by the global batch size|requires at least 2 generations per prompt",
                0.95,
            ),
        ),
        (
            "Set num_generations to a divisor of processes x per_device_train_batch_size x gradient_accumulation_steps (the message lists them), and at least 2.",
        ),
    ),
    Cause(
        "best_metric_missing",
        "The metric that selects the best checkpoint is not among the evaluation's results.",
        (
            sign(r"KeyError: [\"']+(?P<name>eval_\w+)", 0.9, when=within("[Tt]rainer|transformers")),
            sign(r"`metric_for_best_model` training argument is set to '(?P<name>\w+)', which is not found", 0.97),
        ),
        (
            "Set metric_for_best_model to a name that the evaluation prints (eval_loss is always there if the batch has labels), or remove load_best_model_at_end.",
        ),
        explanation="Metric: {name}.",
    ),
    Cause(
        "dataset_type_unknown",
        "The data set's type is not one that axolotl knows.",
        (sign(r"unhandled prompt tokenization strategy: (?P<name>\S+)", 0.98),),
        (
            "Use a type of the installed axolotl (chat_template, alpaca, completion, ...). Types for preferences, such as chatml.intel, need rl: dpo in the same file.",
        ),
        explanation="Given: {name}.",
    ),
    Cause(
        "tensorboard_hparams",
        "A setting has a type that TensorBoard cannot store.",
        (sign(r"value should be one of int, float, str, bool, or torch\.Tensor", 0.96),),
        ("Set report_to to none or wandb, or turn lists and dictionaries among the arguments into text.",),
    ),
    Cause(
        "script_line_endings",
        "The start script has Windows line endings (CRLF).",
        (sign(r"not used by the HfArgumentParser: \['\\r'\]|\\r': command not found|bad interpreter: .*\^M", 0.98),),
        ("Convert it: sed -i 's/\\r$//' SCRIPT, or dos2unix SCRIPT.",),
    ),
)
