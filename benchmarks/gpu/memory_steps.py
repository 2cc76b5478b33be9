"""Runs steps of Lathe's trainer on random weights and measures their memory."""

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.memory_cases import Case
from benchmarks.matrix.inputs import byte_tokenizer
from training.batches.views import TokenList, Tokens
from training.config.run_config import RunConfig
from training.data.rows import DataRows
from training.models import loading
from training.models.attention import implementation
from training.ranks import distributed
from training.reports.live_memory import counted_memory


class Rows(TokenList):
    """Random rows of equal length; the second half of each carries loss."""

    def __init__(self, count: int, length: int) -> None:
        tokens = np.arange(length, dtype=np.int32) * 31 % 200 + 10
        row: Tokens = {
            "input_ids": tokens,
            "labels": np.where(np.arange(length) < length - length // 2, np.int32(-100), tokens),
        }
        super().__init__(np.arange(count), [row] * count)

    @property
    def lengths(self) -> Any:
        return np.array([len(row["input_ids"]) for row in self.tokens])


class Meter:
    """Reads memory: on CUDA from torch and NVML, on CPU the count of live storages. Make it before the first use of CUDA."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self._before = self._in_use() if bench.on_cuda else None
        if bench.on_cuda and self._before is None:
            bench.skip("NVML", "nvidia-ml-py is not installed, or finds no driver")

    def _in_use(self) -> int | None:
        """Returns the GPU memory in use by all processes, from NVML; nothing else may use the GPU during the measurement."""
        try:
            import pynvml
        except ImportError:
            return None
        try:
            pynvml.nvmlInit()
            card = os.environ["CUDA_VISIBLE_DEVICES"]  # one GPU, by number or name
            by_number = pynvml.nvmlDeviceGetHandleByIndex, int
            find, kind = by_number if card.isdigit() else (pynvml.nvmlDeviceGetHandleByUUID, str)
            return int(pynvml.nvmlDeviceGetMemoryInfo(find(kind(card))).used)
        except pynvml.NVMLError:
            return None

    @contextmanager
    def measuring(self) -> Iterator[dict[str, Any]]:
        """A context that yields a dictionary, which afterwards holds the peaks; `began` marks when the weights are loaded."""
        peaks: dict[str, Any] = {"began": fresh_peaks}
        if self.bench.on_cuda:
            yield peaks
            torch.cuda.synchronize()
            peaks |= {"allocated": torch.cuda.max_memory_allocated(), "reserved": torch.cuda.max_memory_reserved()}
            in_use = self._in_use()
            if in_use is not None and self._before is not None:
                peaks["in_use"] = in_use - self._before
        else:
            with counted_memory() as counter:
                peaks["began"] = counter.reset_peak
                yield peaks
                peaks["allocated"] = counter.peak


def fresh_peaks() -> None:
    """Resets the allocator's peaks and empties its cache."""
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()


def took(meter: Meter, config: RunConfig, case: Case) -> dict[str, Any]:
    """Returns the peaks of a few steps in bytes (`allocated`, and on CUDA `reserved` and `in_use`), or the `problem`."""
    from accelerate.state import AcceleratorState

    try:
        with meter.measuring() as peaks:
            train_steps(config, case, meter.bench, peaks["began"])
    except (RuntimeError, ValueError) as error:  # out of memory is a RuntimeError
        return {"problem": f"{type(error).__name__}: {error}"[:300]}
    finally:
        AcceleratorState._reset_state(reset_partial_state=True)
        gc.collect()
        if meter.bench.on_cuda:
            torch.cuda.empty_cache()
    return peaks


def train_steps(config: RunConfig, case: Case, bench: Bench, began: Any) -> None:
    """Trains like training/train.py, with random weights and rows in memory."""
    from training.ranks.stopping import StopSignal
    from training.reports.report import Report
    from training.trainer.arguments import training_arguments
    from training.trainer.make_trainer import make_trainer
    from training.trainer.prepare import Data

    folder = bench.home / "runs" / case.name.replace(" ", "-").replace(",", "")
    folder.mkdir(parents=True)
    machine, tokenizer = distributed.local_machine(), byte_tokenizer()
    report = Report(folder, rank=0)
    distributed.start(config, machine, report)
    hidden = loading.hidden_size_of(config.model)
    arguments = training_arguments(config, folder, machine, config.precision, hidden, evaluates=False)
    with patch.object(loading, "load_model", random_model):
        model = loading.load_trainable(config, config.precision, tokenizer)
    no_files = DataRows((), ())
    rows: Any = Rows(4 * case.rows, case.length)
    data = Data(rows, None, no_files, no_files, 0, 0)
    trainer = make_trainer(config, folder, report, StopSignal(), model, arguments, tokenizer, data, config.precision)
    began()
    trainer.train()


def random_model(
    config: RunConfig, dtype: torch.dtype, *_: Any, compute: torch.dtype | None = None, **__: Any
) -> PreTrainedModel:
    """Makes the model that `load_model` would return, with random weights initialized on the device."""
    known = AutoConfig.from_pretrained(config.model)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model: Any = AutoModelForCausalLM.from_config(known, dtype=dtype)
    quantized = loading.quantization(config, dtype, compute or dtype)
    if quantized:
        # transformers quantizes these weights like those from a file.
        arguments = {
            "config": known,
            "state_dict": model.state_dict(),
            "quantization_config": quantized,
            "dtype": dtype,
        }
        model = type(model).from_pretrained(None, **arguments)
        for module in model.modules():
            if hasattr(module, "support_avx512bf16_for_cpu"):
                module.support_avx512bf16_for_cpu = False
    if kernel := implementation(config, type(model)):
        model.set_attn_implementation(kernel)
    model.config.use_cache = False
    return model
