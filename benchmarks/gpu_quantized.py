"""Part quantized: QLoRA in 4 and 8 bits with bitsandbytes' own kernels beside LoRA in bf16: loss, memory, compute format."""

from typing import Any

from benchmarks.gpu_bench import Bench, installed
from benchmarks.gpu_runs import Run, configured, make_model, make_rows, train_all
from training.config import RunConfig

METHODS: dict[str, dict[str, Any]] = {
    "lora": {"method": "lora"},
    "4bit": {"method": "qlora", "quantization": "4bit"},
    "8bit": {"method": "qlora", "quantization": "8bit"},
}
WEIGHTS = {"4bit": 0.35, "8bit": 0.6}
"""What quantized weights may take of those in bf16, where nearly all are in linear layers: a quarter, a half, and scales."""
FALLEN = 0.95
"""The mean loss of the last steps in units of the first steps'."""


def measure(bench: Bench) -> None:
    if not installed("bitsandbytes"):
        bench.skip("4bit and 8bit", "bitsandbytes is not installed")
        return
    size = {"hidden": 128, "layers": 2} if bench.small else {"hidden": 1536, "layers": 12}
    model, data = make_model(bench.home / "model", **size), make_rows(bench.home / "rows.jsonl", 128, 256)
    # Under a limit that no run reaches, storages are counted where there is no device that counts them.
    limit = {} if bench.on_cuda else {"memory_limit": 65_536}
    shared: dict[str, Any] = {
        "precision": "bf16", "max_steps": 20, "micro_batch_size": 8, "target_modules": "all-linear",
        "learning_rate": 2e-3, **limit,
    }  # fmt: skip
    configs = {name: configured(model, data, **shared | method) for name, method in METHODS.items()}
    runs = train_all(bench, {name: (config, bench.device) for name, config in configs.items()})
    for name, run in runs.items():
        judge(bench, name, run, runs["lora"])
    for name in WEIGHTS:
        compute_formats(bench, name, configs[name])


def judge(bench: Bench, name: str, run: Run, plain: Run) -> None:
    """A row and the checks of a run: it finishes, its loss falls, its weights take less memory than LoRA's in bf16."""
    bench.require(f"{name} finishes", not run.problem, run.problem)
    if run.problem or plain.problem:
        return
    losses = [*run.series("loss").values()]
    fallen = sum(losses[-5:]) / sum(losses[:5])
    (weights,), (peak,) = (run.summary["memory"][key] for key in ("before_bytes", "peak_bytes"))
    (weights_of_plain,) = plain.summary["memory"]["before_bytes"]
    bench.row(
        "QLoRA beside LoRA in bf16", method=name, first_loss=losses[0], last_loss=losses[-1], weights_bytes=weights,
        peak_bytes=peak, tokens_per_second=run.summary["tokens_per_second"],
    )  # fmt: skip
    bench.check(f"{name}: mean loss of the last five steps over that of the first five", fallen, FALLEN)
    if name in WEIGHTS:
        bench.check(f"{name}: weights over those of LoRA in bf16", weights / weights_of_plain, WEIGHTS[name])


def compute_formats(bench: Bench, name: str, config: RunConfig) -> None:
    """Which kernels' layers the loaded model has, and in which format they return their products under autocast."""
    import torch

    from training.config import Precision
    from training.model import load_tokenizer, load_trainable

    model: Any = load_trainable(config, Precision.BF16, load_tokenizer(config)).to(bench.device)
    seen: set[tuple[str, torch.dtype]] = set()
    layers = [one for one in model.modules() if type(one).__name__ in ("Linear4bit", "Linear8bitLt")]
    for layer in layers:
        layer.register_forward_hook(lambda one, _, made: seen.add((type(one).__name__, made.dtype)))
    with torch.no_grad(), torch.autocast(bench.device, dtype=torch.bfloat16):
        model(input_ids=torch.arange(64, device=bench.device)[None])
    told = ", ".join(sorted(f"{layer} returns {dtype}".replace("torch.", "") for layer, dtype in seen))
    only = {dtype for _, dtype in seen} == {torch.bfloat16}
    bench.require(f"{name}: {len(layers)} quantized layers compute in bf16", bool(layers) and only, told)
    if name == "4bit":
        set_to = {layer.compute_dtype for layer in layers}
        bench.require("4bit: compute_dtype is bf16", set_to == {torch.bfloat16}, f"{set_to}")
