"""Causes of failure: installed packages, compilation at first use, and processes ended from outside."""

from worker.diagnosis.cause import Cause, Kind, sign

CAUSES = (
    Cause(
        "cuda_version_mismatch",
        "The installed CUDA toolkit is not the version that torch was built with.",
        (
            sign(
                r"Installed CUDA version (?P<installed>[\d.]+) does not match the version torch was compiled with (?P<torch>[\d.]+)",
                0.97,
            ),
            sign(
                r"The detected CUDA version \((?P<found>[\d.]+)\) mismatches the version that was used to compile", 0.97
            ),
        ),
        (
            "Install the toolkit of torch's CUDA version and point CUDA_HOME to it, or install a torch built with the installed version.",
            "For DeepSpeed, DS_SKIP_CUDA_CHECK=1 skips the check; within one major version that usually works.",
        ),
        explanation="Installed: {installed}; torch: {torch}.",
    ),
    Cause(
        "deepspeed_build_failed",
        "DeepSpeed could not compile one of its operators.",
        (
            sign(
                r"MissingCUDAException: CUDA_HOME does not exist|CUDA_HOME does not exist, unable to compile CUDA op",
                0.97,
            ),
            sign(r"Ninja is required to load C\+\+ extensions", 0.96),
            sign(r"Error building extension '(?P<op>\w+)'", 0.95),
            sign(r"Unable to JIT load the (?P<op>\w+) op due to", 0.95),
            sign(
                r"CUDA_HOME environment variable is not set|/bin/nvcc: not found|No such file or directory: '[^']*nvcc'",
                0.9,
            ),
            sign(
                r"AttributeError: '(?P<op>DeepSpeedCPUAdam|FusedAdam|CPUAdam)\w*' object has no attribute 'ds_opt_adam'",
                0.8,
                Kind.CONSEQUENCE,
            ),
        ),
        (
            "Install what it compiles with: ninja, g++, and for CUDA operators a CUDA toolkit of torch's version, with CUDA_HOME set. ds_report shows what is missing.",
            "Or do not offload the optimizer to the CPU: it then needs no compiled operator.",
            "If an earlier build was interrupted, remove its folder under ~/.cache/torch_extensions.",
        ),
        changes={"offload_optimizer": "none"},
    ),
    Cause(
        "compiler_missing",
        "No C compiler was found; it compiles kernels at their first use.",
        (
            sign(r"Failed to find C compiler\. Please specify via CC environment variable", 0.97),
            sign(
                r"InvalidCxxCompiler|No working C\+\+ compiler found|error: command '(?:gcc|g\+\+|x86_64-linux-gnu-gcc)' failed: No such file",
                0.96,
            ),
            sign(r"fatal error: Python\.h: No such file or directory", 0.96),
        ),
        (
            "Install gcc, g++ and the headers of Python (Debian: apt-get install build-essential python3-dev), or set torch_compile to false.",
        ),
        changes={"torch_compile": False},
    ),
    Cause(
        "flash_attention_missing",
        "FlashAttention is requested but not installed.",
        (
            sign(
                r"FlashAttention\d? has been toggled on, but it cannot be used due to the following error: (?:the package|Flash)",
                0.98,
            ),
            sign(
                r"(?:package flash_attn|flash_attn package|flash-attn).*(?:not|isn't) installed|No module named 'flash_attn'",
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
            sign(r"The installed version of bitsandbytes was compiled without GPU support", 0.5, Kind.SYMPTOM),
            sign(r"Configured CUDA binary not found at", 0.93),
        ),
        (
            "Install a newer bitsandbytes, run python -m bitsandbytes, and point LD_LIBRARY_PATH to the CUDA that torch uses.",
        ),
    ),
    Cause(
        "package_missing",
        "A Python package is not installed.",
        (
            sign(r"ModuleNotFoundError: No module named '(?P<package>[\w.-]+)'", 0.93),
            sign(r"PackageNotFoundError: (?:No package metadata was found for )?(?P<package>[\w-]+)", 0.93),
            sign(
                r"ImportError:.*requires (?:the )?`?(?P<package>[\w-]+)`?(?: library)?.*(?:not found|pip install|not installed)",
                0.93,
            ),
            sign(
                r"(?:requires the (?P<package>\w+) library but it was not found|you need to have sentencepiece installed|Using `bitsandbytes` .*requires)",
                0.93,
            ),
            sign(r"Couldn't instantiate the backend tokenizer from one of", 0.9),
        ),
        (
            "Install it in the environment that trains, and check that this environment is the one that runs (which python). Tokenizers may need sentencepiece, protobuf or tiktoken.",
        ),
        explanation="Package: {package}.",
    ),
    Cause(
        "package_incompatible",
        "Two installed packages are not compatible.",
        (
            sign(r"ImportError: cannot import name '(?P<name>\w+)' from '(?P<package>[\w.]+)'", 0.93),
            sign(
                r"numpy\.dtype size changed, may indicate binary incompatibility|A module that was compiled using NumPy 1\.x cannot be run in",
                0.95,
            ),
            sign(
                r"ImportError: .*\.so(?:\.\d+)*: (?:undefined symbol: (?P<symbol>\w+)|cannot open shared object file)",
                0.92,
            ),
            sign(
                r"(?<!\S)(?P<requirement>[\w-]{1,80}[<>=!]=\S{1,80}) is required for a normal functioning of this module, but found (?P<found>\S+)",
                0.95,
            ),
            sign(r"TypeError: \w+\.__init__\(\) got an unexpected keyword argument '(?P<argument>\w+)'", 0.7),
        ),
        (
            "Install matching versions; rebuild compiled packages (flash-attn, DeepSpeed, xformers) after every change of torch.",
            "pip check lists requirements that are not met.",
        ),
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
    Cause(
        "process_limit",
        "The user has reached the limit of processes or threads.",
        (
            sign(
                r"can't start new thread|BlockingIOError: \[Errno 11\] Resource temporarily unavailable|pthread_create failed",
                0.95,
            ),
        ),
        (
            "Raise the limit (ulimit -u, the container's pids limit), and lower OMP_NUM_THREADS and the number of DataLoader workers.",
        ),
    ),
    Cause(
        "time_limit",
        "The job reached its time limit, or the machine was preempted.",
        (
            sign(r"CANCELLED AT \S+ DUE TO (?P<reason>TIME LIMIT|PREEMPTION|NODE FAILURE)", 0.97),
            sign(r"DUE TO TIME LIMIT|TERM_RUNLIMIT|walltime \d+ exceeded limit|[Pp]reempt(?:ed|ion notice)", 0.93),
            sign(
                r"SignalException: Process \d+ got signal: (?:15|1)\b|Received signal 15|Received Signals\.SIGTERM",
                0.6,
                Kind.CONSEQUENCE,
            ),
        ),
        (
            "Save more often (save_steps) and resume from the last checkpoint; request more time, or train fewer steps per job.",
            "A process started from a shell receives SIGHUP when the shell closes: use nohup, tmux or a job.",
        ),
        changes={"save_steps": 0.1},
    ),
    Cause(
        "interrupted",
        "The training was interrupted with Ctrl-C.",
        (sign(r"^KeyboardInterrupt\b|Process \d+ got signal: 2\b", 0.85, Kind.CONSEQUENCE),),
        ("Resume from the last checkpoint if that was not intended.",),
    ),
    Cause(
        "segmentation_fault",
        "A process crashed in compiled code.",
        (
            sign(r"^Fatal Python error: (?:Segmentation fault|Aborted|Bus error)", 0.9),
            sign(
                r"failed \(exitcode: -11\)|<Signals\.SIGSEGV: 11>|exits with return code = -11",
                0.85,
            ),
            sign(r"Segmentation fault(?: \(core dumped\))?", 0.85),
        ),
        (
            "Rerun with PYTHONFAULTHANDLER=1, which prints where it crashed. Usually an extension was built for another torch: rebuild or remove it.",
        ),
    ),
)
