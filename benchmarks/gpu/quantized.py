"""Part quantized: QLoRA in 4 and 8 bits with bitsandbytes' kernels, compared with LoRA: loss, memory, compute dtype."""

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.gpu.bench import Bench, installed
from benchmarks.gpu.runs import Run, configured, make_model, make_rows, train_all
from training.config.run_config import RunConfig

METHODS: dict[str, dict[str, Any]] = {
    "lora": {"method": "lora"},
    "4bit": {"method": "qlora", "quantization": "4bit"},
    "8bit": {"method": "qlora", "quantization": "8bit"},
}
WEIGHTS = {"4bit": 0.4, "8bit": 0.65}
"""What quantized weights may take of those in 16 bits, where nearly all are in linear layers: a quarter, a half, and scales."""
FALLEN = 0.95
"""The mean loss of the last steps in units of the first steps'."""


def measure(bench: Bench) -> None:
    if not installed("bitsandbytes"):
        bench.skip("4bit and 8bit", "bitsandbytes is not installed")
        return
    size = {"hidden": 256, "layers": 4} if bench.small else {"hidden": 1536, "layers": 12}
    model, data = make_model(bench.home / "model", **size), make_rows(bench.home / "rows.jsonl", 128, 256)
    shared: dict[str, Any] = {
        "precision": "bf16" if bench.on_cuda else "fp32",
        "max_steps": 20,
        "micro_batch_size": 4 if bench.small else 8,
        "target_modules": "all-linear",
        "learning_rate": 2e-3,
        "lora_r": 4,
    }
    if not bench.on_cuda:
        shared["memory_limit"] = 65_536  # never reached; with a limit, storages are counted on CPU
    configs = {name: configured(model, data, **shared | method) for name, method in METHODS.items()}
    runs = train_all(bench, {name: (config, bench.device) for name, config in configs.items()})
    for name, run in runs.items():
        judge(bench, name, run, runs["lora"])
    for name in WEIGHTS:
        compute_formats(bench, name, configs[name])


def judge(bench: Bench, name: str, run: Run, plain: Run) -> None:
    """Adds a row and the checks of a run: it finishes, its loss falls, its weights take less memory than LoRA's."""
    bench.require(f"{name} finishes", not run.problem, run.problem)
    if run.problem or plain.problem:
        return
    losses = [*run.series("loss").values()]
    fallen = sum(losses[-5:]) / sum(losses[:5])
    (weights,), (peak,) = (run.summary["memory"][key] for key in ("before_bytes", "peak_bytes"))
    (weights_of_plain,) = plain.summary["memory"]["before_bytes"]
    bench.row(
        "QLoRA beside LoRA", method=name, first_loss=losses[0], last_loss=losses[-1], weights_bytes=weights,
        peak_bytes=peak, tokens_per_second=run.summary["tokens_per_second"],
    )  # fmt: skip
    bench.check(f"{name}: mean loss of the last five steps relative to the first five", fallen, FALLEN)
    if name in WEIGHTS:
        bench.check(f"{name}: weights relative to LoRA's", weights / weights_of_plain, WEIGHTS[name])


def compute_formats(bench: Bench, name: str, config: RunConfig) -> None:
    """Returns the dtypes of bitsandbytes' kernels in a forward pass: those of dequantized weights or of products."""
    from training.config.choices import Precision
    from training.models.loading import load_tokenizer, load_trainable

    model: Any = load_trainable(config, Precision.BF16, load_tokenizer(config)).to(bench.device)
    with torch.no_grad(), torch.autocast(bench.device, dtype=torch.bfloat16), Kernels() as seen:
        model(input_ids=torch.arange(64, device=bench.device)[None])
    kernels = (
        ", ".join(sorted(f"{kernel}: {format_}" for kernel, format_ in seen.formats)) or "no kernel of bitsandbytes ran"
    )
    if name == "4bit":
        only = {format_ for _, format_ in seen.formats} == {"bfloat16"}
        bench.require("4bit: weights are dequantized and multiplied in bf16", only, kernels)
    else:  # weights stay in 8 bits, and products have the dtype of the input
        bench.require("8bit: bitsandbytes' kernels multiply the weights", bool(seen.formats), kernels)


class Kernels(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records which of bitsandbytes' quantized kernels run while it is entered, and the dtype of their results."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.formats: set[tuple[str, str]] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        created = func(*args, **(kwargs or {}))
        kernel = str(func)
        if kernel.startswith("bitsandbytes.") and ("4bit" in kernel or "mm" in kernel or "matmul" in kernel):
            for item in created if isinstance(created, tuple | list) else [created]:
                if isinstance(item, torch.Tensor) and item.is_floating_point():
                    self.formats.add((kernel.removeprefix("bitsandbytes."), str(item.dtype).removeprefix("torch.")))
        return created
