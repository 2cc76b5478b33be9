"""Causes of failure: compilation of operators and kernels at their first use."""

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
            sign(r"Command '\['ninja', '-v'\]' returned non-zero exit status", 0.85),
            sign(r"Error building extension '(?P<op>\w+)'", 0.95),
            sign(r"AssertionError: Unable to pre-compile (?P<op>\w+)", 0.95),
            sign(r"ImportError: \S*torch_extensions/\S*/(?P<op>\w+)\.so: ", 0.95),
            sign(r"#error (?:You need )?C\+\+(?:14|17|20)|C\+\+17\.h:\d+:\d+: error", 0.85),
            sign(r"You need C\+\+(?:14|17|20) to compile PyTorch|GCC \S+ or newer to use PyTorch", 0.85),
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
        "triton_compile_failed",
        "Triton could not compile a GPU kernel.",
        (
            sign(r"Internal Triton PTX codegen error|PTXASError|ptxas (?:fatal|error)|Command '\S*ptxas", 0.93),
            sign(r"error: '\w+\.\w+' op requires ", 0.85),
            sign(r"LLVM ERROR: ", 0.85),
            sign(r"triton\.compiler\.errors\.\w+|triton\.runtime\.errors\.\w+|^OutOfResources: ", 0.9),
            sign(r"GPUTooOldForTriton|too old to be supported by the triton GPU compiler", 0.88),
            sign(r"(?:BackendCompilerFailed|InductorError|LoweringException)(?=:|$)", 0.8),
            sign(r"torch\._dynamo\.exc\.\w+: |^(?:InternalTorchDynamoError|TorchRuntimeError): ", 0.75),
        ),
        (
            "Install the triton that belongs to torch (pip install --force-reinstall torch), and remove its cache (~/.triton).",
            "Without compiled kernels: torch_compile false, attention sdpa, Liger kernels off.",
        ),
        changes={"torch_compile": False},
    ),
)
