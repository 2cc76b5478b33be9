"""Causes of failure: GPU and host memory."""

from worker.diagnosis.cause import LAST_OF_SUMMARY, Cause, Kind, sign
from worker.diagnosis.oom_analysis import analyze_memory

_KILLED = (
    "Use less host memory: fewer processes, no offload to the CPU, streaming, a smaller micro batch, fewer DataLoader workers.",
    "Check `dmesg -T | grep -i kill` or the job's memory limit: they show whether the out-of-memory killer ended it.",
)

CAUSES = (
    Cause(
        "cuda_out_of_memory",
        "Out of GPU memory.",
        (
            sign(r"(?:OutOfMemoryError|RuntimeError|torch\.\S*Error): (?:CUDA|HIP|XPU) out of memory", 0.98),
            sign(r"OutOfMemoryError: (?:.*[Tt]ried to allocate|Allocation on device)|MPS backend out of memory", 0.97),
            sign(r"CUDA out of memory\. Tried to allocate", 0.97),
            sign(
                r"(?:ResourceExhaustedError|XlaRuntimeError): .*(?:OOM when|[Oo]ut of memory|failed to allocate memory)",
                0.95,
            ),
            sign(
                r"No available memory for the cache blocks|on startup is less than desired GPU memory utilization", 0.85
            ),
            sign(r"Some modules are dispatched on the CPU or the disk|Invalid buffer size: [\d.]+ ?G", 0.8),
            sign(r"RuntimeError: No executable batch size found, reached zero", 0.85),
            sign(r"\bCUDA out of memory\b|^Error out of memory at line \d+ in file", 0.8),
            sign(
                r"CUDA [Ee]rror: out of memory|Triton Error \[CUDA\]: out of memory|CUDA_ERROR_OUT_OF_MEMORY|Cuda failure (?:2 )?'out of memory'|hipErrorOutOfMemory",
                0.9,
            ),
            sign(
                r"(?:NPU|MUSA|MLU) out of memory|\[METAL\] Command buffer execution failed: Insufficient Memory", 0.95
            ),
            sign(r"larger than the maximum number of tokens that can be stored in KV cache", 0.8),
            sign(
                r"`?offload_(?:dir|folder)`? (?:to dispatch this model|for them)|will be offloaded to disk, please pass along",
                0.82,
            ),
        ),
        (),
        analyze=analyze_memory,
    ),
    Cause(
        "cublas_allocation_failed",
        "Out of GPU memory inside a CUDA library, which allocates memory besides torch's.",
        (
            sign(r"CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_ALLOC_FAILED|CUSOLVER_STATUS_ALLOC_FAILED", 0.9),
            sign(r"CUBLAS_STATUS_NOT_INITIALIZED", 0.7, Kind.CONSEQUENCE),
        ),
        (
            "Halve micro_batch_size and double gradient_accumulation_steps, or lower max_length.",
            "If memory is not full, look for a token id outside the vocabulary: rerun with CUDA_LAUNCH_BLOCKING=1.",
        ),
        changes={"on_out_of_memory": "step_down"},
    ),
    Cause(
        "pinned_memory_limit",
        "Page-locked (pinned) host memory ran out, which the GPU driver limits.",
        (
            sign(r"CUDA error: out of memory", 0.95, inside=r"pin_memory|cpu_memory"),
            sign(r"cudaHostAlloc|cudaHostRegister|Failed to (?:allocate|register) pinned", 0.85),
        ),
        (
            "Do not pin: pin_memory false in the offload settings and in the DataLoader (dataloader_pin_memory false).",
            "WSL allows about half of the memory for pinned pages: give WSL more memory (.wslconfig), or train on Linux itself.",
        ),
    ),
    Cause(
        "host_out_of_memory",
        "Out of host memory (RAM): the system ended a training process.",
        (
            sign(
                r"Out of memory: Killed process (?P<pid>\d+)|oom-kill:|[Oo]om[-_ ][Kk]ill event|invoked oom-killer",
                0.98,
            ),
            sign(r"slurmstepd: error: .*[Ee]xceeded (?:job )?memory limit", 0.97),
            sign(r"DefaultCPUAllocator: (?:not enough memory|can't allocate memory)", 0.97),
            sign(
                r"^(?:\w+\.)*(?:_ArrayMemoryError|MemoryError)\b|what\(\): +std::bad_alloc|OSError: (?:\[Errno 12\] Cannot allocate memory|\[WinError 1455\])",
                0.95,
            ),
            sign(r"failed \(exitcode: -9\)|died with <Signals\.SIGKILL: 9>", 0.75),
            sign(rf"exitcode\s*: -9\b{LAST_OF_SUMMARY}", 0.75),
            sign(
                r"exits with return code = -9\b|exited with code (?:137|-9)\b|exit code -9\b|OOMKilled|[Pp]rocess \d+ terminated with signal SIGKILL|signal 9 \(SIGKILL\)|Signal 9 \(SIGKILL\)|exit code 137\b|status 137\b",
                0.75,
            ),
            sign(r"^(?:.*: line \d+: +\d+ )?Killed\b", 0.7),
            sign(r"worker was killed by the OOM|Workers? .* killed due to memory pressure|TerminatedWorkerError", 0.9),
            sign(r"DataLoader worker \(pid\(?s?\)? [\d, ]+\) is killed by signal: Killed", 0.7),
            sign(r"DataLoader worker \(pid\(?s?\)? [\d, ]+\) exited unexpectedly", 0.6, Kind.CONSEQUENCE),
        ),
        _KILLED,
    ),
    Cause(
        "shared_memory_full",
        "Shared memory (/dev/shm) is full.",
        (
            sign(
                r"killed by signal: Bus error\. It is possible that dataloader's workers are out of shared memory", 0.98
            ),
            sign(r"killed by signal: Bus error", 0.88),
            sign(r"[Bb]us error encountered in worker|insufficient shared memory \(shm\)", 0.95),
            sign(r"unable to (?:write to file|mmap \d+ bytes from file|open shared memory object) </torch_", 0.95),
            sign(
                r"posix_fallocate failed : No space left on device|Error while creating shared memory segment|[Nn]o space left on device.*/dev/shm",
                0.95,
            ),
            sign(
                r"failed \(exitcode: -7\)|died with <Signals\.SIGBUS: 7>|exits with return code = -7|exit(?:ed with)? code -7\b",
                0.7,
            ),
        ),
        (
            "Give the container more: `docker run --shm-size=8g` or --ipc=host; in Kubernetes, mount an emptyDir with medium Memory at /dev/shm.",
            "Or load data in the training process: use no DataLoader workers.",
        ),
    ),
)
