"""Steps of Lathe's trainer on random weights, and the memory that they take."""

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from benchmarks.gpu_bench import Bench
from benchmarks.gpu_memory_cases import Case
from benchmarks.matrix_inputs import byte_tokenizer
from training import distributed
from training import model as models
from training.attention import implementation
from training.config import RunConfig
from training.data import TokenList, Tokens
from training.memory_limit import counted_memory


class Rows(TokenList):
    """Random rows of one length, the second half of which carries loss."""

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
    """Reads memory: on CUDA torch's allocator and NVML, on CPU the count of live storages. Made before anything touches CUDA."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self._before = self._in_use() if bench.on_cuda else None
        if bench.on_cuda and self._before is None:
            bench.skip("NVML", "nvidia-ml-py is not installed, or finds no driver")

    def _in_use(self) -> int | None:
        """Bytes of the card in use by anybody, as NVML says; while it is measured nobody else may work on it."""
        try:
            import pynvml
        except ImportError:
            return None
        try:
            pynvml.nvmlInit()
            card = os.environ["CUDA_VISIBLE_DEVICES"]  # one, by its number or its name
            by_number = pynvml.nvmlDeviceGetHandleByIndex, int
            find, kind = by_number if card.isdigit() else (pynvml.nvmlDeviceGetHandleByUUID, str)
            return int(pynvml.nvmlDeviceGetMemoryInfo(find(kind(card))).used)
        except pynvml.NVMLError:
            return None

    @contextmanager
    def measuring(self) -> Iterator[dict[str, Any]]:
        """The peaks of what happens within, in the dictionary afterwards; its `began` marks when the weights are there."""
        found: dict[str, Any] = {"began": fresh_peaks}
        if self.bench.on_cuda:
            yield found
            torch.cuda.synchronize()
            found |= {"allocated": torch.cuda.max_memory_allocated(), "reserved": torch.cuda.max_memory_reserved()}
            in_use = self._in_use()
            if in_use is not None and self._before is not None:
                found["in_use"] = in_use - self._before
        else:
            with counted_memory() as counter:
                found["began"] = counter.reset_peak
                yield found
                found["allocated"] = counter.peak


def fresh_peaks() -> None:
    """Begins the allocator's peaks anew, without what loading has left in its cache."""
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()


def took(meter: Meter, config: RunConfig, case: Case) -> dict[str, Any]:
    """The peaks of a few steps in bytes: `allocated`, and on CUDA `reserved` and `in_use`; or the `problem`."""
    from accelerate.state import AcceleratorState

    try:
        with meter.measuring() as found:
            train_steps(config, case, meter.bench, found["began"])
    except (RuntimeError, ValueError) as error:  # out of memory is a RuntimeError
        return {"problem": f"{type(error).__name__}: {error}"[:300]}
    finally:
        AcceleratorState._reset_state(reset_partial_state=True)
        gc.collect()
        if meter.bench.on_cuda:
            torch.cuda.empty_cache()
    return found


def train_steps(config: RunConfig, case: Case, bench: Bench, began: Any) -> None:
    """The story of training/train.py with random weights in the place of a file's, and rows that are in memory."""
    from training.arguments import training_arguments
    from training.objectives import objective
    from training.prepare import Data
    from training.report import Report
    from training.stopping import StopSignal
    from training.trainer import make_trainer

    folder = bench.home / "runs" / case.name.replace(" ", "-").replace(",", "")
    folder.mkdir(parents=True)
    machine, tokenizer, aim = distributed.local_machine(), byte_tokenizer(), objective(config)
    report = Report(folder, rank=0)
    distributed.start(config, machine, report)
    hidden = models.hidden_size_of(config.model)
    arguments = training_arguments(config, folder, machine, config.precision, hidden, aim, evaluates=False)
    with patch.object(models, "load_model", random_model):
        model = models.load_trainable(config, config.precision, tokenizer)
    data = Data(Rows(4 * case.rows, case.length), None, folder, None, 0, 0)  # type: ignore[arg-type]
    trainer = make_trainer(
        config, aim, folder, report, StopSignal(), model, arguments, tokenizer, data, config.precision
    )
    began()
    trainer.train()


def random_model(config: RunConfig, dtype: torch.dtype, *_: Any, compute: torch.dtype | None = None) -> PreTrainedModel:
    """What `load_model` returns for the shape of `config.model`, with random weights drawn on the device."""
    known = AutoConfig.from_pretrained(config.model)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model: Any = AutoModelForCausalLM.from_config(known, dtype=dtype)
    quantized = models.quantization(config, dtype, compute or dtype)
    if quantized:
        # The library quantizes what it is given as it would what it reads from a file.
        given = {"config": known, "state_dict": model.state_dict(), "quantization_config": quantized, "dtype": dtype}
        model = type(model).from_pretrained(None, **given)
        for module in model.modules():
            if hasattr(module, "support_avx512bf16_for_cpu"):
                module.support_avx512bf16_for_cpu = False
    if kernel := implementation(config, type(model)):
        model.set_attn_implementation(kernel)
    model.config.use_cache = False
    return model
