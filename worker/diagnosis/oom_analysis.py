"""Analyzes a GPU out-of-memory error: the requested bytes, the tensor, the phase, and what helps most."""

import re
from functools import partial
from typing import Any

from pydantic import ValidationError

from training.config.machine import Machine
from training.config.run_config import RunConfig
from training.units import byte_size
from worker.diagnosis.cause import Detail, Known
from worker.diagnosis.oom_numbers import (
    ACTIVATION,
    ATTENTION,
    KINDS,
    LOGITS,
    Guess,
    Numbers,
    exact,
    guess,
    read_numbers,
)
from worker.diagnosis.parsing.tracebacks import Traceback
from worker.diagnosis.timeline import Log

_BATCH = re.compile(
    r"(?:micro_batch_size(?:_per_gpu)?|per_device_train_batch_size|train_batch_size|(?<![a-z_-])batch[_-]size"
    r"|batch size per device)[\"',\s=:]+(\d{1,5})\b",
    re.I,
)
_LENGTH = re.compile(
    r"(?:max_length|max_seq_len(?:gth)?|model_max_length|cutoff_len|block_size|seq_len(?:gth)?|max_source_length)[\"',\s=:]+(\d{2,7})\b"
)
_SHAPE = re.compile(r"\[(\d+(?:, ?\d+){1,4})\]")
_PHASES = (
    (
        "optimizer",
        r"optimizer\.step|/optim/|_init_group|exp_avg|_multi_tensor_|engine\.step|_take_model_step|optimizer_step",
    ),
    ("backward", r"\.backward\(|_engine_run_backward|run_backward|backward_passes"),
    ("evaluation", r"\bevaluate\(|evaluation_loop|prediction_step|\.generate\("),
    ("saving", r"save_checkpoint|save_pretrained|_save\(|state_dict\(\)"),
    ("forward", r"compute_loss|training_step|\bforward\b|_call_impl"),
    (
        "loading",
        r"from_pretrained|_load_pretrained|_load_state_dict|load_checkpoint|\.to\(|\.cuda\(|_move_model|convert\b",
    ),
)
_TENSORS = (
    (LOGITS, r"lm_head|cross_entropy|logits|loss_fct|loss_function|log_softmax"),
    (ATTENTION, r"attn|attention|softmax|scores|baddbmm|matmul\(q"),
    (ACTIVATION, r"mlp|act_fn|gate_proj|up_proj|down_proj|DenseReluDense|\bwi(_\d)?\(|\bwo\(|gelu|c_fc|intermediate"),
)
_UNKNOWN_MEMORY = 2**40
_SIZES = ("micro_batch_size", "gradient_accumulation_steps")
_FULL_PRECISION = re.compile(r"dtype=torch\.float32|\.float\(\)")
_HALF = re.compile(r"\b(bf16|fp16|float16|bfloat16)\b")
_FITS = (
    "Halve micro_batch_size and double gradient_accumulation_steps; the global batch size stays the same.",
    "Set gradient_checkpointing to full: activations are recomputed instead of kept.",
)


_LAST = "If that is not enough, shard more (zero2, zero3); offload last, since it is the slowest."
_LAST_OF_DEVICE = (
    (
        re.compile(r"\bMPS\b|\[METAL\]|\[metal::"),
        "If that is not enough, train an adapter or a smaller model, and close other programs: a Mac has one memory for all.",
    ),
    (
        re.compile(r"XlaRuntimeError|RESOURCE_EXHAUSTED|\bhbm\b"),
        "If that is not enough, shard weights and optimizer state over more devices (in JAX, an fsdp axis of the mesh).",
    ),
)

_VLLM = re.compile(r"/vllm/|EngineCore|VllmWorker|\bvllm\.")
_IN_VLLM = (
    "Lower gpu_memory_utilization of vLLM if it fails while it starts or captures graphs (or set enforce_eager), and max_num_seqs "
    "and max_model_len if it fails while it generates; the micro batch of the training does not matter here.",
    "If the weights alone do not fit, raise tensor_parallel_size, or serve a quantized model; end other processes on the GPU "
    "(nvidia-smi lists them). With the training on the same GPU (trl: vllm_mode colocate), let it sleep (vllm_enable_sleep_mode).",
)
_HELD = "Other processes use most of the GPU's memory."
_OF_LOGITS = (
    "The loss converts the logits of the whole batch here, which take rows x length x vocabulary: lower max_length or the rows, or "
    "take a loss that never stores them whole (chunked_loss on; transformers: use_liger_kernel)."
)
_IN_EVALUATION = (
    "Keep only what the metrics need: prediction_loss_only=True, or preprocess_logits_for_metrics that returns the argmax.",
    "Lower per_device_eval_batch_size, and set eval_accumulation_steps=1, which moves predictions to host memory after each batch.",
)
_OF_GATHERED = (
    "Logits of all ranks are padded and gathered on each GPU here: a batch takes processes x rows x length x vocabulary.",
)
_GATHERED = re.compile(r"pad_across_processes|gather_for_metrics|nested_gather|\bgather\(|nested_concat")
_GENERATING = "Lower max_new_tokens and num_beams: the KV cache grows with rows x beams x length."
_IN_SAVING = (
    "Save the state sharded (fsdp_state_dict_type SHARDED_STATE_DICT), or gather it on the CPU: whole, it fills one GPU.",
    "With ZeRO-3, set stage3_gather_16bit_weights_on_model_save to false, and convert the checkpoint with zero_to_fp32.py.",
)


def analyze_memory(log: Log, index: int, known: Known) -> Detail:
    """Analyzes the failed allocation from the message, the traceback, the model and the settings."""
    message = log.following(index, 3)
    numbers, trace = read_numbers(message), log.traceback_at(index)
    code = _code(trace)
    phase = next((name for name, pattern in _PHASES if re.search(pattern, code)), None)
    batch = known.micro_batch or known.config.get("micro_batch_size") or _logged_batch(log)
    guesses = (
        _guesses(log, numbers, trace, known, batch)
        if numbers.requested and phase not in ("optimizer", "loading")
        else []
    )
    held = _is_held(numbers)
    if _is_in_vllm(log, index, code) and not held:
        explanation = " ".join(part for part in (_request(numbers, phase), _usage(numbers)) if part)
        inferred = _inferred(numbers, phase, [])
        return Detail(explanation, _IN_VLLM, changes={}, inferred=inferred, title="vLLM is out of GPU memory.")
    # Settings of the training change nothing in an evaluation, and nothing about other processes.
    changes = (
        {} if held or (phase in ("evaluation", "saving") and not known.config) else _changes(known.config, batch, phase)
    )
    in_loss = phase == "forward" and not guesses and _kinds(trace) == (LOGITS,)
    sentences = [_request(numbers, phase), _usage(numbers), _reasoning(numbers, guesses, batch)]
    return Detail(
        explanation=" ".join(part for part in sentences if part),
        fix=_others(numbers)
        if held
        else (
            *((_OF_LOGITS,) if in_loss else ()),
            *_fixes(numbers, phase, guesses, known.config, changes, code, _last_fix(message)),
        ),
        changes=changes,
        inferred=_inferred(numbers, phase, guesses),
        title=_HELD if held else "",
    )


def _is_in_vllm(log: Log, index: int, code: str) -> bool:
    """True if vLLM, and not the training, asked for the memory."""
    return bool(_VLLM.search(f"{log.lines[index].shown}\n{code}"))


def _is_held(numbers: Numbers) -> bool:
    """True if other processes use more of the GPU than this one."""
    return sum(used for _, used in numbers.others) > (numbers.sizes or {}).get("own_bytes", 0)


def _others(numbers: Numbers) -> tuple[str, ...]:
    """What to do about each other process that uses much of the GPU."""
    return tuple(
        f"Process {pid} uses {byte_size(used)} of the same GPU: end it, or choose another GPU with CUDA_VISIBLE_DEVICES."
        for pid, used in numbers.others
        if used > 2**29
    )


def _last_fix(message: str) -> str:
    """What helps if the rest is not enough, for the kind of device that the message names."""
    return next((fix for name, fix in _LAST_OF_DEVICE if name.search(message)), _LAST)


def _code(trace: Traceback | None) -> str:
    return "\n".join(f"{frame.file} {frame.function}( {frame.code}" for frame in trace.frames) if trace else ""


def _guesses(log: Log, numbers: Numbers, trace: Traceback | None, known: Known, batch: int | None) -> list[Guess]:
    lines = log.lines[trace.first : trace.last + 1] if trace else log.lines
    shapes = [tuple(map(int, shape.split(","))) for line in lines for shape in _SHAPE.findall(line.text)]
    if settled := exact(numbers.least, numbers.most, shapes):
        return [settled]
    if known.dimensions is None or (numbers.requested or 0) < 32 * 2**20:  # smaller ones fit hundreds of shapes
        return []
    lengths = frozenset(int(length) for length in _LENGTH.findall(log.text)) | {
        int(known.config.get("max_length") or 0)
    }
    kinds, widths = _kinds(trace), _widths(log, trace)
    bounds = (numbers.least, numbers.most, known.dimensions)
    fitting = partial(guess, *bounds, kinds=kinds, lengths=lengths, element_bytes=widths)
    return fitting(batch=batch) or fitting()


def _kinds(trace: Traceback | None) -> tuple[str, ...]:
    """The kinds of tensor that the innermost matching frame works on; all kinds if no frame matches."""
    for frame in reversed(trace.frames if trace else ()):
        for kind, pattern in _TENSORS:
            if re.search(pattern, f"{frame.function} {frame.code}"):
                return (kind,)
    return KINDS


def _widths(log: Log, trace: Traceback | None) -> tuple[int, ...]:
    """Bytes per element, the more likely first; 4 alone if the code computes in fp32, as softmax and the loss usually do."""
    if any(_FULL_PRECISION.search(frame.code) for frame in (trace.frames[-3:] if trace else ())):
        return (4,)
    return (2, 4) if _HALF.search(log.text) else (4, 2)


def _logged_batch(log: Log) -> int | None:
    sizes = {int(number) for number in _BATCH.findall(log.text)} - {0}
    return min(sizes) if sizes else None  # the log may also name the global batch


def _request(numbers: Numbers, phase: str | None) -> str:
    when = {"loading": "while loading the model", "optimizer": "in the optimizer step", "saving": "while saving"}
    where = when.get(
        phase or "", f"in the {phase} pass" if phase in ("forward", "backward") else f"in {phase}" if phase else ""
    )
    gpu = "" if numbers.gpu is None else f" on GPU {numbers.gpu}"
    tried = f"Tried to allocate {byte_size(numbers.requested)}" if numbers.requested else "An allocation failed"
    return " ".join(part for part in (tried + gpu, where) if part) + "."


def _usage(numbers: Numbers) -> str:
    sizes = numbers.sizes or {}
    if "capacity_bytes" in sizes and "allocated_bytes" in sizes and "free_bytes" not in sizes:
        return f"{byte_size(sizes['allocated_bytes'])} of {byte_size(sizes['capacity_bytes'])} were in use by tensors."
    if "capacity_bytes" not in sizes or "free_bytes" not in sizes:
        return ""
    used = f", {byte_size(sizes['allocated_bytes'])} in use by tensors" if "allocated_bytes" in sizes else ""
    return f"{byte_size(sizes['free_bytes'])} of {byte_size(sizes['capacity_bytes'])} were free{used}."


def _reasoning(numbers: Numbers, guesses: list[Guess], batch: int | None) -> str:
    if not guesses or numbers.requested is None:
        return ""
    best, *others = guesses
    message = f"{byte_size(numbers.requested)} is the size of the {best.tensor} {best.words}: batch {best.batch_size}"
    message += f", sequence length {best.sequence_length:,}."
    if not others:
        return message
    also = "; ".join(f"{other.tensor} {other.words}" for other in others[:3])
    advice = "" if batch else " Give the micro batch (--micro-batch) to tell them apart."
    return f"{message} Other tensors of this size: {also}.{advice}"


def _inferred(numbers: Numbers, phase: str | None, guesses: list[Guess]) -> dict[str, Any]:
    values: dict[str, Any] = {
        "bytes_requested": numbers.requested,
        "gpu": numbers.gpu,
        "phase": phase,
        **(numbers.sizes or {}),
    }
    if guesses:
        shown = [{**vars(one), "shape": list(one.shape), "bytes": one.bytes} for one in guesses]
        values |= shown[0] | {"candidates": shown}
        values.pop("bytes")
    return {name: value for name, value in values.items() if value is not None}


def _fixes(
    numbers: Numbers,
    phase: str | None,
    guesses: list[Guess],
    config: dict[str, Any],
    changes: dict[str, Any],
    code: str,
    last: str,
) -> tuple[str, ...]:
    fixes = [*_others(numbers)]
    if numbers.unused > max(numbers.requested or 0, 2**30) // 2 and _would_fit(numbers):
        fixes.append(f"{_fragmented(numbers)}: start with PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.")
    tensor = guesses[0].tensor if guesses else None
    if tensor == ATTENTION:
        fixes.append("Set attention to sdpa or flash_attention_2, which never store the attention matrix.")
    if tensor in (ATTENTION, LOGITS):
        fixes.append("Lower max_length, or remove the few longest rows: this tensor grows with the sequence length.")
    if phase == "loading":
        packed = "in 4 bits (quantization 4bit) or " if "quantization" in changes else ""
        return (*fixes, f"Load the weights {packed}in 16 bits, or shard them (strategy zero3 or fsdp).")
    if phase == "optimizer":
        fixes.append(
            "Choose an optimizer with a smaller state (adamw_8bit, adafactor), shard it (zero2), or offload it to the CPU."
        )
        fixes.append("Or train an adapter (method lora): its optimizer state is small.")
        return tuple(fixes)
    if phase == "saving":
        return (*fixes, *_IN_SAVING)
    if phase == "evaluation" and not config:  # a run of Lathe evaluates with micro_batch_size and keeps no logits
        gathered = _OF_GATHERED if _GATHERED.search(code) else ()
        return (*fixes, *gathered, *((_GENERATING,) if ".generate(" in code else ()), *_IN_EVALUATION)
    least = config.get("micro_batch_size") == 1, config.get("gradient_checkpointing") in ("full", "offloaded")
    left = [one for one, done in zip(_FITS, least, strict=True) if not done]
    return (*fixes, *left, last)


def _would_fit(numbers: Numbers) -> bool:
    """True unless the request is larger than what is free and what is reserved but unused together."""
    free = (numbers.sizes or {}).get("free_bytes")
    return free is None or free + numbers.unused >= (numbers.requested or 0)


def _fragmented(numbers: Numbers) -> str:
    """How much memory is fragmented, in the numbers that the message has."""
    sizes = numbers.sizes or {}
    if "unused_bytes" in sizes:
        return f"{byte_size(sizes['unused_bytes'])} are reserved but fragmented"
    reserved, allocated = byte_size(sizes["reserved_bytes"]), byte_size(sizes["allocated_bytes"])
    return f"{reserved} are reserved, of which tensors use {allocated}; the rest is fragmented"


def _changes(config: dict[str, Any], batch: int | None, phase: str | None) -> dict[str, Any]:
    """The first step of the ladder and of the page (training/forecast/step_down.py), from the settings that are known.

    Of a log without its run's settings, at most the rows of its micro batch, `batch`, are known: other sizes are not guessed.
    """
    from training.forecast.step_down import LOADING, first_step  # imported here: few logs need it

    try:
        sizes = config or ({"micro_batch_size": batch} if batch else {})
        run = RunConfig.model_validate({"model": "unknown", "data": "unknown"} | sizes)
    except ValidationError:  # settings of another program
        return {}
    gpus = run.num_processes
    machine = Machine("cuda", gpus, ["GPU"] * gpus, [_UNKNOWN_MEMORY] * gpus)
    part = LOADING if phase == "loading" else phase or "forward"
    changes = dict(first_step(run, machine, part=part) or {})
    unknown = () if config else _SIZES if batch is None else _SIZES[1:]
    return {name: value for name, value in changes.items() if name not in unknown}
