"""Analyzes the dump of a process that does not go on: what its main thread waits for."""

import re

from worker.diagnosis.cause import Detail, Known
from worker.diagnosis.timeline import Log

_INNERMOST = 12  # frames
_FRAME = re.compile(
    r"\s+(?:File \"(?P<path>[^\"]+)\", line \d+ in (?P<name>\S+)|(?P<function>\S+) \((?P<file>[^\s()]+):\d+\))"
)
_WAITS = (
    (
        r"(?:all_reduce|all_gather|reduce_scatter|broadcast|barrier|all_to_all|_coalesc|recv|send)\w* .*distributed|deepspeed/comm",
        "It waits in a collective for the other ranks.",
        "Dump the other ranks too: the one that is not in this collective keeps the others waiting. It may evaluate, save, read a "
        "longer batch, or have taken another branch (`if rank == 0`, a batch less).",
        "If all are in the same collective, they do not reach each other: NCCL_DEBUG=INFO, NCCL_P2P_DISABLE=1, NCCL_SOCKET_IFNAME.",
    ),
    (
        r"filelock|_flock|lockf",
        "It waits for a lock on a file.",
        "End the other process that holds it (`fuser -v FILE.lock`), or delete the .lock file if none does; give runs caches of "
        "their own on a local disk.",
    ),
    (
        r"iflatmap_unordered|datasets/arrow_dataset|multiprocess/pool",
        "It waits for the processes that prepare the data set.",
        "Prepare it with one process (num_proc=1, preprocessing_num_workers 1): an error or a death for memory is then shown. Set "
        "TOKENIZERS_PARALLELISM=false, since forked tokenizers may wait for each other.",
    ),
    (
        r"dataloader\.py|_try_get_data|_next_data",
        "It waits for a worker of the DataLoader.",
        "Load data in the training process (dataloader_num_workers 0) to see whether a row, a slow disk or a forked library is "
        "to blame; if so, start workers with spawn.",
    ),
    (
        r"ssl\.py|urllib3|http/client|requests/|httpx|huggingface_hub|hf_xet",
        "It waits for an answer from the network.",
        "Set HF_HUB_OFFLINE=1 if the files are in the cache, or HF_HUB_DOWNLOAD_TIMEOUT; check the proxy, and the server.",
    ),
    (
        r"\b(?:input|readline|prompt)\b|getpass",
        "It waits for somebody to type an answer.",
        "Give the answer beforehand: WANDB_API_KEY or report_to none, trust_remote_code, HF_TOKEN.",
    ),
    (
        r"\b(?:synchronize|item|cpu|tolist|nonzero) |torch/cuda|_engine_run_backward",
        "It waits for the GPU to end its work.",
        "Look at nvidia-smi: 100% without progress is a collective that another rank did not join, or a kernel; 0% a lost GPU "
        "(`dmesg -T`, Xid).",
    ),
)


def analyze_stack(log: Log, index: int, known: Known) -> Detail:
    """Tells from the innermost frames of the main thread what it waits for."""
    frames: list[str] = []
    for line in log.lines[index + 1 :]:
        found = _FRAME.match(line.text)
        if found:
            frames.append(f"{found['name'] or found['function']} {found['path'] or found['file']}")
        elif frames:
            break
    for pattern, what, *fix in _WAITS:
        if any(re.search(pattern, frame) for frame in frames[:_INNERMOST]):
            return Detail(explanation=what, fix=tuple(fix))
    return Detail(explanation=f"Its innermost function is {frames[0]}." if frames else "")
