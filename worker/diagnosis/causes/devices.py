"""Causes of failure: GPUs, drivers and kernels."""

from worker.diagnosis.cause import Cause, Kind, sign

_CUDA = r"(?:CUDA [Ee]rror|Triton Error \[CUDA\]|CUDA driver error|CUDA [Rr]untime [Ee]rror|HIP [Ee]rror)(?: \(\d+\))?"
"""How torch, Triton, cupy and vLLM begin the message of a CUDA error."""
_RERUN = "Rerun with CUDA_LAUNCH_BLOCKING=1: kernels run asynchronously, so the line shown here is usually not the one that failed."

CAUSES = (
    Cause(
        "driver_too_old",
        "The NVIDIA driver is too old for the CUDA version that torch was built with.",
        (
            sign(r"The NVIDIA driver on your system is too old \(found version (?P<version>\d+)\)", 0.97),
            sign(r"CUDA driver version is insufficient for CUDA runtime version", 0.97),
            sign(r"forward compatibility was attempted on non supported HW", 0.93),
            sign(r"the provided PTX was compiled with an unsupported toolchain", 0.93),
        ),
        (
            "Update the driver, or install a torch built with an older CUDA (pip install torch --index-url of that CUDA version).",
            "nvidia-smi shows the newest CUDA version that the driver supports; python -c 'import torch; print(torch.version.cuda)' shows the one that torch needs.",
        ),
        explanation="Found: version {version}.",
    ),
    Cause(
        "driver_mismatch",
        "The NVIDIA driver's library and kernel module have different versions.",
        (
            sign(
                r"Driver/library version mismatch|Failed to initialize NVML|system has unsupported display driver",
                0.95,
            ),
        ),
        ("The driver was updated while it was in use: restart the machine, or reload its kernel modules.",),
    ),
    Cause(
        "no_kernel_image",
        "torch or an extension has no kernels for this GPU.",
        (
            sign(r"[Nn]o [Kk]ernel image (?:is )?available", 0.97),
            sign(
                r"hipErrorNoBinaryForGpu|HIP error: (?:invalid device function|shared object initialization failed)",
                0.95,
            ),
            sign(rf"{_CUDA}: invalid device function", 0.85),
            sign(
                r"^(?P<gpu>\S.{0,100}?) with CUDA capability (?P<capability>sm_\d+) is not compatible with the current PyTorch installation",
                0.9,
            ),
        ),
        (
            "Install a torch version that supports the GPU: a newer one for new cards, an older one for cards that are no longer supported.",
            "AMD: install the torch for your ROCm version; for a card it does not list, HSA_OVERRIDE_GFX_VERSION names the nearest listed one (10.3.0 for RDNA 2, 11.0.0 for RDNA 3).",
            "Rebuild extensions (flash-attn, DeepSpeed, xformers) with TORCH_CUDA_ARCH_LIST set to the GPU's compute capability.",
        ),
        explanation="GPU: {gpu} ({capability}).",
    ),
    Cause(
        "gpu_not_found",
        "torch finds no GPU.",
        (
            sign(
                r"No CUDA GPUs are available|Found no NVIDIA driver on your system|no CUDA-capable device is detected",
                0.96,
            ),
            sign(r"Torch not compiled with CUDA enabled", 0.97),
            sign(
                r"No (?:NVIDIA )?GPU(?: or \w+ XPU)? found[.?!]|No available GPU device found|currently no available devices found|only supported with GPUs, no GPUs found|GPU is required to (?:quantize|run)|is_available\(\) should be True but is False|cannot find any torch accelerator|Cannot access accelerator device when none is available",
                0.95,
            ),
            sign(r"CUDA unknown error - this may be due to an incorrectly set up environment", 0.93),
            sign(r"Attempting to deserialize object on a CUDA device but torch\.cuda\.is_available\(\) is False", 0.93),
            sign(
                r"nvidia-container-cli: initialization error|could not select device driver \"\" with capabilities: \[\[gpu\]\]",
                0.95,
            ),
            sign(r"UnboundLocalError: .*local variable 'n_gpus?'", 0.7),
            sign(r"Unexpected error from cudaGetDeviceCount\(\)(?!.*Error 80[34])", 0.75),
        ),
        (
            "Check that nvidia-smi lists the GPUs, that CUDA_VISIBLE_DEVICES is not empty, and that the container was started with --gpus all.",
            "Check that torch was built with CUDA: python -c 'import torch; print(torch.version.cuda)' must not print None.",
        ),
    ),
    Cause(
        "gpu_ordinal_invalid",
        "A rank requested a GPU that does not exist.",
        (
            sign(
                rf"{_CUDA}: invalid device ordinal|Invalid device id|device >= 0 && device < num_gpus INTERNAL ASSERT FAILED",
                0.96,
            ),
        ),
        ("Start at most as many processes (num_processes) as CUDA_VISIBLE_DEVICES lists GPUs.",),
    ),
    Cause(
        "gpu_busy",
        "Another process uses the GPU exclusively.",
        (sign(r"CUDA-capable device\S* (?:is/are|are|is) busy or unavailable", 0.96),),
        ("End the other process (nvidia-smi lists it), or reset the compute mode: nvidia-smi -c DEFAULT.",),
    ),
    Cause(
        "device_side_assert",
        "An assertion failed in a GPU kernel.",
        (sign(rf"{_CUDA}: device-side assert triggered|cudaErrorAssert", 0.8, Kind.CONSEQUENCE),),
        (
            "Usually an index is out of range: a token id outside the embedding, or a label outside the classes. Run one batch on the CPU: the error there names it.",
            _RERUN,
        ),
    ),
    Cause(
        "illegal_memory_access",
        "A GPU kernel accessed invalid memory.",
        (
            sign(
                rf"{_CUDA}: (?:an illegal memory access was encountered|misaligned address|unspecified launch failure|an illegal instruction)|(?:cuda|hip)ErrorIllegalAddress|CUDA_ERROR_ILLEGAL_ADDRESS|Error an illegal memory access|Memory access fault by GPU",
                0.93,
            ),
        ),
        (
            _RERUN,
            "Remove custom kernels one by one (flash-attn, fused optimizers, torch.compile, 8-bit optimizers); then test the card with dcgmi diag.",
        ),
    ),
    Cause(
        "metal_command_failed",
        "A command buffer of an Apple GPU (Metal) failed.",
        (
            sign(r"\[METAL\] Command buffer execution failed: (?!Insufficient Memory)(?P<what>.{1,200})", 0.95),
            sign(r"[Cc]ommand buffer exited with error status|MTLCommandBuffer.*(?:failed|error)", 0.9),
            sign(r"failed assertion `.*(?:MTL|MPS)|MPSNDArray.*(?:failed|error): ", 0.85),
        ),
        (
            "Update macOS and MLX or torch; end other programs that use the GPU, and rerun: an internal error or a timeout often does not return.",
            "If it returns at the same step, lower the batch size and max_length: long commands are ended by the system.",
        ),
        explanation="{what}",
    ),
    Cause(
        "gpu_hardware",
        "GPU hardware failure.",
        (
            sign(r"NVRM: Xid \([^)]*\): (?P<xid>\d+)|\bXid (?P<number>\d+)\b", 0.95),
            sign(
                r"uncorrectable ECC error encountered|GPU has fallen off the bus|Unable to determine the device handle for GPU",
                0.97,
            ),
            sign(rf"{_CUDA}: (?:hardware (?:stack )?error|uncorrectable NVLink error)", 0.96),
        ),
        (
            "Take the GPU out of use and reset it or restart the machine; `nvidia-smi -q -d ECC` and dmesg show details. If it happens again, replace the card.",
            "The run can continue from its last complete checkpoint on another machine.",
        ),
    ),
    Cause(
        "cudnn_mismatch",
        "torch found a cuDNN version other than its own.",
        (
            sign(
                r"cuDNN version incompatibility|CUDNN_STATUS_(?:VERSION_MISMATCH|SUBLIBRARY_VERSION_MISMATCH)",
                0.9,
            ),
            sign(r"CUDNN_STATUS_NOT_INITIALIZED", 0.7),
        ),
        (
            "Remove other cuDNN and CUDA libraries from LD_LIBRARY_PATH: torch ships its own. Nearly full GPU memory can also cause this error.",
        ),
    ),
)
