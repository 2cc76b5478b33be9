"""Serves models by vLLM: it generates, with the prompts, end tokens and stop strings of `training.serving`."""

from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from training.config.choices import Quantization
from training.models.loading import check_files_finite
from training.serving.forms import RequestError
from training.serving.generation import GREEDY_BELOW, Recorder
from training.serving.jobs import Generator, Job
from training.serving.loaded import Base, Served, Shared, own_tokenizer, saved_ends, tokenizers_of
from training.trainer.answering import end_tokens
from training.vllm.client import VllmError
from training.vllm.limits import Models, NotLoaded, check
from training.vllm.models import base_config, generation_config
from training.vllm.server import Server, serving

_THREADS = 64
"""Answers at a time; vLLM computes them together."""


def load(
    base: Base,
    adapters: Mapping[str, Path],
    models: Mapping[str, Path],
    arguments: Mapping[str, Mapping[str, Any]],
    running: ExitStack,
) -> tuple[dict[str, Served], Generator, Server]:
    """As `loaded.load`, with what answers for the models. vLLM ends with `running`. Raises NotLoaded if vLLM cannot load them."""
    if models:
        raise NotLoaded("vllm", next(iter(models)), "is not loaded: a process of vLLM serves one whole model.")
    dtype, quantized = str(base.dtype).removeprefix("torch."), base.quantized != Quantization.NONE
    wanted = Models(base.model, base.name, base.revision, dtype, quantized, adapters)
    config = base_config(wanted)
    if wanted.dtype == "auto" and config.dtype:  # vLLM's own choice turns weights of 32 bits into 16
        wanted = replace(wanted, dtype=str(config.dtype).removeprefix("torch."))
    for name, folder in adapters.items():
        check_files_finite(folder, "adapter", f"{name}={folder}")
    tokenizers = tokenizers_of(base, adapters)
    check(wanted, config, max(map(len, tokenizers.values())))
    server = running.enter_context(serving(wanted, None))
    whole, context = tuple(end_tokens(generation_config(wanted, config), tokenizers[base.name])), server.context()
    ends = {name: whole if (saved := saved_ends(folder)) is None else saved for name, folder in adapters.items()}
    served = {
        name: Served(name, Shared(), name, used, ends.get(name, whole), context, arguments.get(name, {}))
        for name, used in tokenizers.items()
    }
    return served, Generator(lambda job: _answer(server, job), _THREADS), server


def load_adapter(server: Server, base: Served, name: str, folder: Path, arguments: Mapping[str, Any]) -> Served:
    """As `loaded.load_adapter`, by vLLM."""
    check_files_finite(folder, "adapter", f"{name}={folder}")
    server.load_adapter(name, folder)
    saved = saved_ends(folder)
    ends = base.ends if saved is None else saved
    return Served(name, base.shared, name, own_tokenizer(folder) or base.tokenizer, ends, base.context, arguments)


def _answer(server: Server, job: Job) -> None:
    recorder = Recorder(job)
    try:
        with closing(server.stream(_body(job))) as parts:
            for part in parts:
                _record(recorder, part)
                if recorder.is_over:
                    break
    except VllmError as error:
        raise RequestError(error.status, "model", job.served.name, error.message, error.fix) from error
    job.emit(recorder.end())


def _record(recorder: Recorder, part: dict[str, Any]) -> None:
    most, logprobs = recorder.job.request.wanted_logprobs, part.get("logprobs")
    for index, token in enumerate(part["token_ids"]):
        if recorder.is_over:
            return
        if most is None or logprobs is None:
            recorder.add(token, None, ())
            continue
        # Of keys token_id:N.
        known = [(int(key.rpartition(":")[2]), value) for key, value in (logprobs["top_logprobs"][index] or {}).items()]
        best = sorted(known, key=lambda one: -one[1])[:most]
        recorder.add(token, logprobs["token_logprobs"][index], tuple(best))


def _body(job: Job) -> dict[str, Any]:
    """Stop strings are found in the tokens here, as without vLLM."""
    request = job.request
    sampled = request.temperature > GREEDY_BELOW
    return {
        "model": job.served.adapter,
        "prompt": job.prompt,
        "max_tokens": job.max_tokens,
        "min_tokens": request.min_tokens,
        "temperature": request.temperature if sampled else 0,
        "top_p": request.top_p if sampled else 1,
        "top_k": max(request.top_k, 0) if sampled else 0,
        "min_p": request.min_p if sampled else 0,
        "repetition_penalty": request.repetition_penalty,
        "seed": request.seed,
        "ignore_eos": True,
        "stop_token_ids": list(job.ends),
        "logprobs": request.wanted_logprobs,
        "return_tokens_as_token_ids": True,
        "return_token_ids": True,
    }
