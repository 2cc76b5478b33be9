"""Part probe: compares the peak memory of the probe with that of the same run without it."""

from typing import Any

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.runs import Run, configured, make_model, make_rows, train_all, worst_difference

LIMIT_PERCENT = 5.0
CURVE_LIMIT = 1e-4


def measure(bench: Bench) -> None:
    size = {"hidden": 128, "layers": 2} if bench.small else {"hidden": 1024, "layers": 12}
    model, data = make_model(bench.home / "model", **size), make_rows(bench.home / "rows.jsonl", 64, 480)
    limit = {} if bench.on_cuda else {"memory_limit": 65_536}  # on CPU storages are counted only with a limit
    shared: dict[str, Any] = {
        "max_steps": 16, "micro_batch_size": 4, "max_length": 512, "learning_rate": 1e-4,
        "precision": "bf16" if bench.on_cuda else "fp32", **limit,
    }  # fmt: skip
    jobs = {
        f"{method} {probe}": (configured(model, data, method=method, probe=probe, **shared), bench.device)
        for method in (("lora",) if bench.small else ("lora", "full"))
        for probe in ("on", "off")
    }
    runs = train_all(bench, jobs)
    for name in runs:
        method, probe = name.split()
        if probe == "on":
            judge(bench, method, runs[name], runs[f"{method} off"])


def judge(bench: Bench, method: str, probed: Run, plain: Run) -> None:
    """Compares the probe's peak with that of the run without probe, and checks that the probe changed nothing."""
    problem = probed.problem or plain.problem
    bench.require(f"{method}: runs with and without a probe finish", not problem, problem)
    if problem:
        return
    foretold = probed.series("probe_peak").get(0, float("nan"))
    (peak,) = plain.summary["memory"]["peak_bytes"]
    error = 100 * (foretold / peak - 1)
    bench.row("The probe's peak", method=method, probe_bytes=foretold, run_bytes=peak, error_percent=error)
    bench.check(f"{method}: error of the probe's peak in percent", abs(error), LIMIT_PERCENT)
    differ = worst_difference(probed.series("loss"), plain.series("loss"))
    bench.check(f"{method}: difference of losses with and without a probe", differ, CURVE_LIMIT)
