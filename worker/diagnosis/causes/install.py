"""Causes of failure: installed packages."""

from worker.diagnosis.argument_analysis import analyze_argument, is_between_packages, is_renamed
from worker.diagnosis.cause import Cause, Kind, sign
from worker.diagnosis.conditions import at_code_only, by_package, of_package

_UNEXPECTED = (
    r"(?:TypeError: (?!_forward_unimplemented).*|^(?!_)[\w.]+\.__init__)\(\) got an unexpected keyword argument"
)
_REMOVED = (
    r"'(?:numpy' has no attribute '(?:bool|int|float|object|str|complex|long|unicode|Inf|NaN|float_|product)"
    r"|datasets' has no attribute 'load_metric|PIL\.Image' has no attribute '(?:ANTIALIAS|LINEAR|CUBIC)"
    r"|collections' has no attribute '(?:Mapping|MutableMapping|Iterable|Callable)|pkgutil' has no attribute 'ImpImporter"
    r"|inspect' has no attribute 'getargspec|torch' has no attribute '(?:_six|float8_\w+|uint(?:16|32|64)|get_default_device))'"
)
"""Names that later versions no longer have, or that only they have."""

CAUSES = (
    Cause(
        "flash_attention_missing",
        "FlashAttention is requested but not installed, or its version is too old.",
        (
            sign(
                r"FlashAttention ?\d? has been toggled on, but it cannot be used due to the following error:(?!.*not available on)",
                0.95,
            ),
            sign(
                r"(?:package flash_attn|flash_attn package|flash-attn).*(?:not|isn't) installed|No module named 'flash_attn'|Flash Attention \d is not available\.|not found in your environment: [\w, ]*flash_attn",
                0.95,
            ),
        ),
        (
            "Set attention to auto or sdpa, which is part of torch, or install it: pip install flash-attn --no-build-isolation.",
        ),
        changes={"attention": "sdpa"},
    ),
    Cause(
        "bitsandbytes_without_gpu",
        "bitsandbytes could not load its library for this CUDA version.",
        (
            sign(r"CUDA Setup failed despite (?:GPU|CUDA) being available", 0.97),
            sign(r"undefined symbol: cquantize_blockwise\w*|undefined symbol: cget_col_row_stats", 0.97),
            sign(
                r"'NoneType' object has no attribute 'c(?:get_|adam|adagrad|lion|quantize|dequantize|percentile|gemm|igemm)\w*'|name 'str2optimizer\w+' is not defined",
                0.93,
            ),
            sign(r"available devices `available_devices = \w+` are supported by the bitsandbytes", 0.93),
            sign(r"8-bit operations on `bitsandbytes` are not supported under CPU", 0.85),
            sign(r"The installed version of bitsandbytes was compiled without GPU support", 0.5, Kind.SYMPTOM),
            sign(
                r"CUDA is required but not available for bitsandbytes|Configured CUDA binary not found at|CUDA SETUP: CUDA detection failed|Configured ROCm binary not found at",
                0.93,
            ),
        ),
        (
            "Install a newer bitsandbytes, run python -m bitsandbytes, and point LD_LIBRARY_PATH to the CUDA that torch uses.",
        ),
    ),
    Cause(
        "package_missing",
        "A Python package, or a program that it calls, is not installed.",
        (
            sign(r"ModuleNotFoundError: +No module named '(?P<package>[\w-]+|google\.[\w.]+)'", 0.8),
            sign(r"ModuleNotFoundError: +No module named '(?P<package>[\w.-]+)'", 0.6),
            sign(r"^ImportError: No (?:module )?(?P<package>[\w-]+)(?: / .*)?$", 0.8),
            sign(r"PackageNotFoundError: (?:No package metadata was found for )?(?P<package>[\w-]+)", 0.93),
            sign(
                r"ImportError:.*requires (?:the )?`?(?!latest)(?P<package>[\w-]+)`?(?: library)?.*(?:not found|pip install|not installed)",
                0.93,
            ),
            sign(
                r"(?:ImportError|RuntimeError|ValueError|AssertionError|OSError|ModuleNotFoundError): .*(?:(?:[Pp]lease|need to|must) (?:first |make sure to )?(?:pip )?install(?! \w+ ?[<=])|pip3? install|is not installed|to be installed|have `?\w+`? installed)",
                0.8,
            ),
            sign(
                r"Failed to import \S+ because of the following error[^\n]*[\n:]\s*No module named '(?P<package>[\w-]+)'",
                0.8,
                Kind.OUTCOME,
            ),
            sign(
                r"(?:requires the (?P<package>\w+) library but it was not found|you need to have sentencepiece installed|Using `bitsandbytes` .*requires)",
                0.93,
            ),
            sign(
                r"^(?:bash: |sh: |zsh: |/\S+: |\S+\.sh: )(?:line )?(?:\d+: )?(?P<package>accelerate|torchrun|deepspeed|llamafactory-cli|axolotl|swift|python3?|mpirun|uv|poetry): (?:command )?not found|^zsh: command not found: (?P<program>accelerate|torchrun|deepspeed|llamafactory-cli|axolotl|swift|python3?)",
                0.85,
            ),
            sign(
                r"FileNotFoundError: \[Errno 2\] No such file or directory: '(?P<package>(?!nvcc)[\w-]+)'",
                0.86,
                inside=r"subprocess\.py (?:Popen\.)?_execute_child",
            ),
            sign(
                r"'NoneType' object has no attribute '\w+'",
                0.75,
                when=at_code_only(
                    r"(?<![\w.])(?:xformers|flash_attn|triton|bitsandbytes|bnb|deepspeed|apex)(?:\.\w+)+"
                ),
            ),
            sign(r"TritonMissing: |Cannot find a working triton installation", 0.85),
            sign(r"Couldn't instantiate the backend tokenizer from one of", 0.9),
            sign(
                r"Converting from (?:Tiktoken|SentencePiece and Tiktoken) failed|`tiktoken` is required to read", 0.75
            ),
            sign(r"cannot import name '(?:TF|Flax)[A-Z]\w+' from '(?P<package>transformers)[\w.]*'", 0.8),
            sign(
                r"NameError: name '(?:init_empty_weights|PartialState|AcceleratorState|Accelerator|dispatch_model|find_tied_parameters|bnb|deepspeed)' is not defined",
                0.8,
                when=by_package,
            ),
        ),
        (
            "Install it in the environment that trains, and check that this environment is the one that runs (which python). Tokenizers may need sentencepiece, protobuf or tiktoken.",
        ),
        explanation="Package: {package}.",
    ),
    Cause(
        "package_incompatible",
        "Two installed packages, or the script and a package, are not compatible.",
        (
            sign(rf"{_UNEXPECTED}(?: '(?P<argument>\w+)')?", 0.9, when=is_renamed),
            sign(rf"{_UNEXPECTED}(?: '(?P<argument>\w+)')?", 0.75, when=is_between_packages),
            sign(
                r"TypeError: [\w.]+\(\) takes (?:from )?\d+ .*positional arguments? but \d+ (?:was|were) given",
                0.7,
                when=by_package,
            ),
            sign(
                r"TypeError: [\w.]+\(\) missing \d+ required positional arguments?: ",
                0.6,
                inside=r"_patch|unsloth|peft/tuners/.*dispatch",
            ),
            sign(
                r"AttributeError: '(?P<kind>\w*(?:LoraModel|PeftModel|Trainer|ForCausalLM|ForConditionalGeneration)\w*)' object has no attribute '(?P<name>_[a-z]\w+)'",
                0.75,
            ),
            sign(
                r"TypeError: on_\w+\(\) missing \d+ required positional arguments?: ",
                0.75,
                inside=r"trainer_callback",
            ),
            sign(r"AttributeError: 'AdamW' object has no attribute '(?P<argument>train|eval)'", 0.9),
            sign(
                r"TypeError: .* got multiple values for (?:keyword )?argument '(?P<argument>\w+)'", 0.7, when=by_package
            ),
            sign(
                r"AttributeError: '\w*(?:Arguments|Config|Trainer|Plugin|Accelerator)' object has no attribute '(?P<argument>\w+)'",
                0.7,
                when=by_package,
            ),
            sign(
                r"ModuleNotFoundError: +No module named '(?P<package>torch|torchvision|transformers|peft|trl|accelerate|deepspeed|triton|flash_attn|bitsandbytes|datasets|numpy|vllm|xformers|unsloth|unsloth_zoo|llamafactory|swift|huggingface_hub|tokenizers|apex|megatron|lightning|pytorch_lightning|torchao|liger_kernel|sentence_transformers|langchain|langchain_community|tensorflow|keras|tensorboard|evaluate|gradio|openai|awq|auto_gptq|optimum|fsspec|pydantic|scipy|pandas)\.(?P<name>[\w.]+)'",
                0.85,
            ),
            sign(
                r"ImportError: cannot import name '(?P<name>(?!TF[A-Z]|Flax[A-Z])\w+)' from '(?P<package>[\w.]+)' (?P<file>\(.*(?:site|dist)-packages)",
                0.93,
            ),
            sign(
                r"ImportError: cannot import name '(?P<name>(?!TF[A-Z]|Flax[A-Z])\w+)' from '(?P<package>[\w.]+)'",
                0.85,
                when=of_package,
            ),
            sign(
                r"^(?:RuntimeError: .*)?operator torchvision::\w+ does not exist|RuntimeError: Numpy is not available",
                0.93,
            ),
            sign(
                r"ImportError: cannot import name '(?P<name>(?!TF[A-Z]|Flax[A-Z])\w+)' from '(?P<package>(?:transformers|trl|peft|accelerate|deepspeed|bitsandbytes|vllm|unsloth|llamafactory)\b[\w.]*)'",
                0.8,
            ),
            sign(r"ERROR: Package '(?P<package>[\w.-]+)' requires a different Python", 0.95),
            sign(
                r"ERROR: (?:Could not find a version that satisfies the requirement|No matching distribution found for) ",
                0.85,
            ),
            sign(
                r"Failed to import \S+ because of the following error \(look up to see its traceback\): (?!No module named '[\w-]+'$)\S",
                0.75,
                Kind.OUTCOME,
            ),
            sign(r"ValueError: Could not find (?P<name>\w+) neither in <module", 0.85),
            sign(r"ImportError: DLL load failed while importing (?P<name>\w+)", 0.8),
            sign(
                r"Failed to import \S+ because of the following error[^\n]*\n\s*(?!No module named '[\w-]+')\S",
                0.75,
                Kind.OUTCOME,
            ),
            sign(
                r"numpy\.dtype size changed, may indicate binary incompatibility|A module that was compiled using NumPy 1\.x cannot be run in",
                0.95,
            ),
            sign(
                r"ImportError: (?!.*torch_extensions).*\.so(?:\.\d+)*: (?:undefined symbol: (?P<symbol>\w+)|cannot open shared object file)",
                0.92,
            ),
            sign(
                r"(?<!\S)(?P<requirement>[\w-]{1,80}[<>=!]=\S{1,80}) is required for a normal functioning of this module, but found (?P<found>\S+)",
                0.95,
            ),
            sign(r"^(?:RuntimeError: .*)?undefined symbol: (?P<symbol>\w+)", 0.85),
            sign(r"AttributeError: type object '(?P<kind>\w+)' has no attribute '(?P<name>\w+)'", 0.6, when=by_package),
            sign(
                r"AttributeError: (?:partially initialized )?module '(?P<package>[\w.]+)' has no attribute '(?P<name>\w+)'",
                0.75,
                when=by_package,
            ),
            sign(rf"AttributeError: module {_REMOVED}", 0.9),
            sign(
                r"(?:pkg_resources\.|importlib.*)?(?:VersionConflict|ContextualVersionConflict): (?P<requirement>.+)",
                0.95,
            ),
            sign(r"ImportError: Using `?[\w-]+`? requires? `?(?P<requirement>[\w-]+ ?[<>=]+ ?[\d.]+)", 0.93),
            sign(
                r"Couldn't build proto file into descriptor pool|Descriptors cannot (?:not )?be created directly|Loading a dataset cached in a <?\w*LocalFileSystem|compiled with different CUDA m\w+ versions",
                0.95,
            ),
            sign(
                r"Invalid pattern: '\*\*' can only be an entire path component|Feature type '\w+' not found\. Available feature types|Unable to avoid copy while creating an array as requested|numpy\.core\.multiarray failed to import|compiled against API version 0x",
                0.93,
            ),
            sign(
                r"`\w+` is not registered in the auto doc|is already used by a Transformers (?:config|model), pick another name|has a `config_class` attribute that is not consistent with the config class",
                0.85,
                when=by_package,
            ),
            sign(
                r"TypeError: _\w+\(\)(?:: argument '\w+'(?: \(position \d+\))? must be| received an invalid combination of arguments)",
                0.8,
                when=by_package,
            ),
            sign(
                r"(?:Dynamo|torch\.compile) is not supported on (?:Python|Windows)|(?:Python \S+|Windows) not yet supported for torch\.compile",
                0.88,
            ),
            sign(r"TypeError: must be called with a dataclass type or instance", 0.85, inside=r"datasets/"),
            sign(r"`?rope_scaling`? must be a dictionary with|The config file at \S+ had unknown keys", 0.85),
            sign(r"version of `?bitsandbytes`? (?:that )?is not compatible with", 0.95),
            sign(
                r"Could not import module '(?P<name>\w+)'\. Are this object's requirements defined correctly",
                0.75,
                Kind.OUTCOME,
            ),
            sign(
                r"(?:Import|Value|Runtime|ModuleNotFound|NotImplemented)Error: .*(?:(?:[Pp]lease|should) (?:(?:upgrade|update|downgrade)\b|install \w+ ?[<=])|[Rr]equires? (?:at least )?(?:PyTorch|[Tt]orch|transformers|accelerate|peft|datasets|trl|bitsandbytes|deepspeed)`? ?[<>=]+ ?[\d.]+|version must be [<>=]+ ?[\d.]+)",
                0.8,
            ),
            sign(
                r"AttributeError: '(?P<kind>\w*Cache)' object has no attribute '(?P<name>\w+)'|'(?:DataFrame|Series)' object has no attribute '(?:append|iteritems|ix|as_matrix)'",
                0.8,
            ),
        ),
        (
            "If the script is older than the library, install the version it was written for (pip show prints the installed one), or change the script.",
            "Install matching versions; rebuild compiled packages (flash-attn, DeepSpeed, xformers) after every change of torch.",
            "pip check lists requirements that are not met.",
        ),
        analyze=analyze_argument,
    ),
    Cause(
        "library_conflict",
        "The system's C library is older than a package needs.",
        (sign(r"version `(?P<version>GLIBC(?:XX)?_[\d.]+)' not found", 0.97),),
        (
            "Use a newer system or container, or a build of the package for this one; for GLIBCXX install libstdcxx-ng (conda) or a newer g++.",
        ),
        explanation="Needed: {version}.",
    ),
)
