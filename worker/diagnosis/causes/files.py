"""Causes of failure: files and disks."""

from worker.diagnosis.cause import Cause, Kind, sign
from worker.diagnosis.conditions import outside

_ANSWERS = r"requests/|httpx|urllib|json\.loads\("  # texts from elsewhere, not files

CAUSES = (
    Cause(
        "disk_full",
        "A disk is full.",
        (
            sign(r"(?<!posix_fallocate failed : )No space left on device(?!.*(?:/dev/shm|torch_))", 0.97),
            sign(r"Disk quota exceeded|\[Errno (?:28|122)\]|\(os error (?:28|122)\)|Os \{ code: (?:28|122)\b", 0.96),
            sign(r"\[WinError 112\]|Not enough disk space\. Needed|database or disk is full", 0.95),
            sign(r"PytorchStreamWriter failed writing file|unexpected pos \d+ vs \d+", 0.8),
            sign(r"Not enough free disk space to download the file", 0.6, Kind.SYMPTOM),
        ),
        (
            "Free some space, or write elsewhere: the output folder, the caches (HF_HOME) and TMPDIR may be on different disks (df -h).",
            "Keep fewer checkpoints (save_total_limit): in full fine-tuning each takes about three times the model's size.",
        ),
        changes={"save_total_limit": 1},
    ),
    Cause(
        "read_only_disk",
        "Training writes to a folder that is read-only.",
        (sign(r"Read-only file system(?:: '(?P<path>[^']+)')?", 0.96),),
        (
            "Mount it writable, or point output folder, HF_HOME, TRITON_CACHE_DIR and TORCH_EXTENSIONS_DIR to writable folders.",
        ),
        explanation="Path: {path}.",
    ),
    Cause(
        "storage_failed",
        "The disk or the network file system failed.",
        (
            sign(
                r"Stale file handle|failed with Input/output error|\[Errno 5\] Input/output error|Transport endpoint is not connected",
                0.95,
            ),
        ),
        ("Check dmesg and the file server. Copy model and data to a local disk and start again.",),
    ),
    Cause(
        "permission_denied",
        "The user who trains has no permission to read or write a file or folder.",
        (
            sign(
                r"PermissionError: \[Errno 13?\] (?:Permission denied|Operation not permitted)(?:: '(?P<path>[^']+)')?",
                0.95,
            ),
            sign(r"PermissionError: \[WinError 5\] [^:]*(?:: '(?P<path>[^']+)')?", 0.93),
            sign(r"^(?:builtins\.)?PermissionError: (?!Tried to)", 0.8),
            sign(r"OSError: PermissionError at (?P<path>\S+) when downloading", 0.95),
            sign(r"Permission denied: '(?P<path>/[^']+)'", 0.9),
            sign(r"^(?:bash|sh|/\S+): .*Permission denied|[Pp]ermission denied while trying to connect", 0.85),
        ),
        (
            "Change the permissions (ls -l, id), or choose another folder: for caches, set HF_HOME and TORCH_EXTENSIONS_DIR.",
        ),
        explanation="Path: {path}.",
    ),
    Cause(
        "too_many_open_files",
        "A process has reached the limit of open files.",
        (
            sign(r"Too many open files", 0.96),
            sign(r"received 0 items of ancdata", 0.93),
        ),
        (
            "Raise the limit before the start: ulimit -n 65536 (docker --ulimit nofile=65536).",
            "Or call torch.multiprocessing.set_sharing_strategy('file_system'), and use fewer DataLoader workers.",
        ),
    ),
    Cause(
        "file_missing",
        "A file does not exist.",
        (
            sign(r"FileNotFoundError: \[Errno 2\] No such file or directory: '?(?P<path>[^'\n]+)'?", 0.85),
            sign(r"RuntimeError: unable to open file <(?P<path>[^>]+)>.*No such file", 0.9),
            sign(r"FileNotFoundError: (?!\[Errno)(?!.*, but got an? )", 0.8),
            sign(r"ValueError: No file with name: (?P<path>\S+) found in ", 0.93),
            sign(r"RuntimeError: Parent directory (?P<path>\S+) does not exist", 0.93),
            sign(r"^OSError: Cannot find data file\.", 0.8),
            sign(
                r"Could not find (?:a suitable TLS CA certificate bundle|the TLS \w+ file), invalid path: (?P<path>\S+)",
                0.88,
            ),
            sign(r"(?<!nvcc')(?<!nvcc): \[Errno 2\] No such file or directory", 0.8),
            sign(r"can't open file '(?P<path>[^']+)': \[Errno 2\]", 0.9),
            sign(
                r"(?<!\S)\S{1,300} does not appear to have (?:a file|files) named (?!adapter_|\(?'?pytorch_model|\(?'?model|preprocessor_|processor_)(?P<path>[\w./-]+?)\.? Checkout",
                0.75,
            ),
        ),
        (
            "Check the path, and the folder that relative paths start from. With several machines, the file must exist on all of them.",
        ),
        explanation="Path: {path}.",
    ),
    Cause(
        "weights_file_damaged",
        "A weights file is truncated or damaged.",
        (
            sign(r"SafetensorError: Error while deserializing header: (?P<what>\w+)", 0.97),
            sign(
                r"UnpicklingError: (?:pickle data was truncated|unpickling stack underflow|could not find MARK)", 0.95
            ),
            sign(r"cloned a repository without having git-lfs installed", 0.95),
            sign(r"OSError: Unable to load weights from pytorch checkpoint file for", 0.75, Kind.OUTCOME),
            sign(r"EOFError: Ran out of input", 0.85, inside=r"torch/serialization|load_state_dict|checkpoint"),
            sign(r"MetadataIncompleteBuffer|InvalidHeaderDeserialization|HeaderTooLarge|HeaderTooSmall", 0.95),
            sign(
                r"PytorchStreamReader failed (?:reading|locating|finding)|invalid load key|unexpected EOF, expected \d+ more bytes",
                0.93,
            ),
            sign(r"Consistency check failed: file should be of size (?P<size>\d+)", 0.9),
            sign(
                r"Failed to parse safetensors header|The state dictionary of the model you are trying to load is corrupted",
                0.93,
            ),
            sign(
                r"[Ii]ncompatible safetensors file\. File metadata is not|does not contain the valid metadata\. Make sure you save",
                0.85,
            ),
            sign(
                r"could not parse ModelProto from|\[model_proto->ParseFromArray|Unable to load vocabulary from file\. Please check",
                0.75,
            ),
        ),
        (
            "Download or copy the file again. A file of a few hundred bytes that begins with `version https://git-lfs` is a pointer: run git lfs pull.",
            "For a checkpoint, use the previous one; a run that is killed while saving leaves such a file.",
        ),
    ),
    Cause(
        "json_broken",
        "A configuration file is not valid JSON.",
        (
            sign(r"JSONDecodeError: (?P<what>.+)", 0.9, when=outside(_ANSWERS)),
            sign(r"It looks like the config file at '(?P<path>[^']+)' is not a valid JSON file", 0.97),
        ),
        (
            "Open the file at the given line and look for an extra comma, a comment, a missing quote, or an empty file. If it belongs to the model, download it again.",
        ),
    ),
    Cause(
        "weights_not_found",
        "The model's folder contains no weights.",
        (
            sign(r"(?:no file named|Error no file named) .*(?:safetensors|pytorch_model\.bin)", 0.96),
            sign(
                r"does not appear to have (?:a file|files) named \(?'?(?:pytorch_model|model)[\w.-]*\.(?:bin|safetensors)",
                0.96,
            ),
            sign(
                r"which is required according to the checkpoint index|Can't find a checkpoint index|but there is a file for (?:TensorFlow|Flax|TF)",
                0.9,
            ),
            sign(r"is not a folder containing a `\.index\.json` file|Can't find weights for \S+ in ", 0.9),
        ),
        (
            "Give the folder with the weights: for a training run, usually its last checkpoint-N folder.",
            "An adapter's folder contains only adapter_model.safetensors: load it with PEFT on its base model.",
        ),
    ),
    Cause(
        "unsafe_pickle",
        "A pickled file was refused because loading it could run code.",
        (
            sign(r"Weights only load failed", 0.97),
            sign(r"[Dd]ue to a serious vulnerability issue in `torch\.load`", 0.97),
            sign(r"WeightsUnpickler error: Unsupported", 0.96),
        ),
        (
            "Convert weights to safetensors. For a checkpoint of your own, allow the classes it names (torch.serialization.add_safe_globals).",
            "torch 2.6 and later load only weights by default; use the torch version that wrote the checkpoint, or load with weights_only=False if you trust it.",
        ),
    ),
)
