"""Whether a run fits, before it is queued: its settings, its model's config.json and its data set's worst batch put together."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from training import cards
from training.activations import Batch
from training.advice import Advice, advise
from training.cards import Card
from training.config import Packing, RunConfig, Strategy, Task
from training.fields import parse
from training.memory import SLACK, Forecast, forecast, full_batch
from training.model_files import count_parameters
from training.model_shape import ModelShape, ShapeError, read_shape
from training.order import padded, worst_batches
from training.rules import Machine, check
from training.selection import select
from training.token_store import TokenStore, open_store
from worker import database, measuring, run_data
from worker.models import Dataset


@dataclass(frozen=True)
class Found:
    """The answer: the forecast, what would fit instead or beside it, and what is assumed (`notes`)."""

    forecast: Forecast
    advice: list[Advice]
    notes: list[str]


def shape_at(model: str) -> ModelShape:
    """The shape of a model: a folder with config.json, with or without weights, or such a file itself.

    Raises:
        ShapeError: there is none, or it says too little.
    """
    path = Path(model).expanduser()
    config = path / "config.json" if path.is_dir() else path
    if not config.is_file():
        fix = "Give a folder with config.json, or the file; a hub model's can be downloaded alone."
        raise ShapeError(f"{model} holds no config.json here.", fix)
    shape = read_shape(config)
    files = sorted(config.parent.glob("*.safetensors"))
    try:
        return shape.with_counted(sum(count_parameters(file) for file in files)) if files and not shape.exact else shape
    except (OSError, ValueError, KeyError):
        return shape  # damaged weights are told of elsewhere


def card_of(machine: Machine) -> Card | None:
    """This machine's smallest GPU; None where it has none."""
    if machine.kind != "cuda" or not machine.memory_bytes:
        return None
    least = min(range(len(machine.memory_bytes)), key=lambda index: machine.memory_bytes[index])
    return cards.like(machine.names[least] if machine.names else "", machine.memory_bytes[least])


def host_memory() -> int:
    """Bytes of memory that this machine has."""
    return int(psutil.virtual_memory().total)


def worst_batch(config: RunConfig, store: TokenStore) -> Batch | None:
    """The largest micro batch that a run over a tokenized set will meet; None where no row trains."""
    first = store.first_trained_with(train_on_prompt=config.train_on_prompt)
    chosen = select(store.lengths, first, max_length=config.max_length, seed=config.seed, eval_split=config.eval_split)
    lengths = np.minimum(store.lengths[chosen.train], config.max_length)
    if not len(lengths):
        return None
    flat = lies_flat(config)
    world = config.num_processes // config.sequence_parallel_size
    (worst,) = worst_batches(
        lengths, micro_batch=config.micro_batch_size, accumulation=config.gradient_accumulation_steps, world=world,
        seed=config.seed, epochs=config.epochs, max_steps=config.max_steps, count=1, pads=not flat,
    )  # fmt: skip
    rows = chosen.train[worst.rows]
    tokens = int(lengths[worst.rows].sum()) if flat else len(worst.rows) * padded(worst.longest)
    with_loss = int(np.maximum(lengths[worst.rows] - np.maximum(first[rows], 1), 0).sum())
    return Batch(len(rows), worst.longest, tokens, with_loss if flat else tokens, flat=flat)


def lies_flat(config: RunConfig) -> bool:
    """Whether a run's rows are laid end to end, as training/layout.py decides for the models that allow it."""
    plain = config.task in (Task.SFT, Task.PRETRAINING) and config.sequence_parallel_size == 1
    return plain and config.packing is not Packing.NONE and not config.neftune_noise_alpha


def foresee(
    config: RunConfig,
    shape: ModelShape,
    card: Card | None,
    *,
    store: TokenStore | None = None,
    host_bytes: int | None = None,
    slack: float = SLACK,
) -> Found:
    """The forecast for a run, and the configurations that fit, fastest first."""
    notes = []
    batch = worst_batch(config, store) if store is not None and config.task in (Task.SFT, Task.PRETRAINING) else None
    if batch is None:
        batch = full_batch(config)
        notes.append(f"Every row is taken to be {config.max_length:,} tokens long, since the data's are not counted.")
    if not shape.exact:
        notes.append(
            f"{shape.model_type or 'This architecture'} is taken to be laid out as Llama is; a simulation looks at its real layers."
        )
    found = forecast(config, shape, card=card, batch=batch, host_limit_bytes=host_bytes, slack=slack)
    if card is None:
        return Found(found, [], notes)
    advice = advise(
        config, shape, card, batch=batch, host_limit_bytes=host_bytes, nvme=bool(config.nvme_path), slack=slack
    )
    return Found(found, advice, notes)


def as_document(found: Found) -> dict[str, Any]:
    """The answer as JSON: bytes, and the advice as changes to the settings."""
    return numbers(found.forecast) | {
        "advice": [
            {
                "changes": one.changes,
                "relative_speed": round(one.relative_speed, 3),
                "cost": one.cost,
                **_short(one.forecast),
            }
            for one in found.advice
        ],
        "notes": found.notes,
    }


def numbers(found: Forecast) -> dict[str, Any]:
    """A forecast as JSON."""
    return {
        "fits": found.fits,
        "reasons": found.reasons,
        "peak_bytes": found.peak_bytes,
        "moment": found.moment,
        "parts": found.parts,
        "moments": found.moments,
        "host_bytes": found.host_bytes,
        "nvme_bytes": found.nvme_bytes,
        "limit_bytes": found.limit_bytes,
        "host_limit_bytes": found.host_limit_bytes,
        "trainable_parameters": found.trainable,
        "total_parameters": found.total,
        "batch": asdict(found.batch),
    }


def _short(found: Forecast) -> dict[str, Any]:
    return {"fits": found.fits, "peak_bytes": found.peak_bytes, "host_bytes": found.host_bytes}


@dataclass(frozen=True)
class Rung:
    """A strategy with a method: its forecast, the changes to the settings that choose it, or why it is refused."""

    strategy: str
    method: str
    changes: dict[str, Any]
    forecast: Forecast | None
    refused: str = ""


_STRATEGIES = {
    "one device": ("single", "none", "none"),
    "DDP": ("ddp", "none", "none"),
    "ZeRO-1": ("zero1", "none", "none"),
    "ZeRO-2": ("zero2", "none", "none"),
    "ZeRO-2 + optimizer offload": ("zero2", "cpu", "none"),
    "ZeRO-3": ("zero3", "none", "none"),
    "ZeRO-3 + offload": ("zero3", "cpu", "cpu"),
    "FSDP": ("fsdp", "none", "none"),
    "FSDP + offload": ("fsdp", "none", "cpu"),
}
_METHODS = {
    "full": {"method": "full", "quantization": "none"},
    "LoRA": {"method": "lora", "quantization": "none"},
    "QLoRA 8-bit": {"method": "qlora", "quantization": "8bit"},
    "QLoRA 4-bit": {"method": "qlora", "quantization": "4bit"},
}


def ladder(
    config: RunConfig, shape: ModelShape, card: Card, *, batch: Batch, host_bytes: int | None = None
) -> list[Rung]:
    """Every strategy with every method, for the configuration's number of processes and its other settings."""
    rungs = []
    for place, (strategy, optimizer, parameters) in _STRATEGIES.items():
        for method, how in _METHODS.items():
            changes = {"strategy": strategy, "offload_optimizer": optimizer, "offload_param": parameters, **how}
            if strategy == "single":
                changes["num_processes"] = "1"
            tried = parse(config.model_dump(mode="json") | changes)
            count = tried.num_processes
            machine = Machine("cuda", count, [card.label] * count, [card.memory_bytes] * count, card.bf16)
            against = next((one.reason for one in check(tried, machine) if one.blocking), "")
            found = None if against else forecast(tried, shape, card=card, batch=batch, host_limit_bytes=host_bytes)
            rungs.append(Rung(place, method, changes, found, against))
    return rungs


def spread(config: RunConfig, count: int) -> RunConfig:
    """The configuration on so many GPUs; on several, one device becomes DDP."""
    several = count > 1 and config.strategy is Strategy.SINGLE
    return config.model_copy(update={"num_processes": count, **({"strategy": Strategy.DDP} if several else {})})


def counted(config: RunConfig, model: str) -> TokenStore | None:
    """The tokens of the run's data set with its model's tokenizer, where they are counted already."""
    if not run_data.DATASET_ID.fullmatch(config.data):
        return None
    with database.read() as session:
        item = session.get(Dataset, config.data)
    if item is None:
        return None
    state = measuring.state(item.sha256, model, config.columns or item.columns_map, revision=config.revision)
    return open_store(state.store) if state.store else None
