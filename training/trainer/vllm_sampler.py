"""Draws the samples of a rank by vLLM: one beside it on its device, or a server at an address.

Before samples are drawn, vLLM gets the adapter as it is, under a new name, so that nothing of an earlier one can answer. Then the
trainer computes the log-probabilities of some samples itself. vLLM and the trainer round differently; if they differ by more, vLLM
has other weights, and the run ends.
"""

import gc
import math
import shutil
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.utils.rnn import pad_sequence

from training.checkpointing.weights import write_adapter
from training.config.choices import Precision
from training.errors import UserError
from training.models.loading import DTYPES
from training.ranks.distributed import barrier, reduce_over_ranks
from training.run_folder.paths import sampler_dir
from training.trainer.evaluation import Means
from training.trainer.prompts import SAMPLER_LOGPS, Batch, prompts
from training.trainer.sample_passes import SamplePasses
from training.vllm.client import Client, DrawnSample, VllmError, over_network
from training.vllm.limits import NotLoaded, check, refusal
from training.vllm.models import base_config, models_of
from training.vllm.server import Beside, serving

_AT_ONCE = 128
"""Requests of a rank at a time; vLLM computes them together."""
_COMPARED = 8
"""Samples of a rank whose log-probabilities are compared with the trainer's own."""
_SECONDS, _SECONDS_PER_TOKEN = 120.0, 0.5
"""How long a sample may take."""
_WAITS = (1.0, 4.0)  # seconds before a request is sent again
_BUSY = (408, 429, 500, 502, 503, 504)
_FIX = "Set generation to model to draw samples by forward passes."
_SHARED = (
    "Let the server see the run's folder under the same path, and start it with --enable-lora, --max-lora-rank, and "
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING=True."
)
_ROUNDING = {Precision.FP32.value: 0.02}
_ROUNDING_16_BITS = 0.2
"""Mean difference of log-probabilities in nats per token that rounding explains."""


class OtherSampler(UserError):  # noqa: N818
    """vLLM has other weights than the trainer, or other tokens."""


class VllmSampler:
    """Draws samples with the weights of a trainer. vLLM starts for the first ones, and ends with the trainer's `beside`."""

    difference = 0.0
    """Mean difference of the log-probabilities of the samples that were compared last."""

    def __init__(self, passes: SamplePasses) -> None:
        self._passes, self._trainer, self._config = passes, (trainer := passes.trainer), passes.config
        self._folder = sampler_dir(trainer.context.run_dir)
        self._loaded, self._adapter, self._room, self._depth = -1, "", 0, 0
        self._sleeps = self._config.vllm_sleep and self._config.has_vllm_beside and can_sleep(trainer.args.device)
        self._sleeping, self._proved = False, False

    @cached_property
    def _client(self) -> Client:
        """vLLM, once it answers."""
        url, running = self._config.vllm_url, self._trainer.beside
        if url:
            client = Client(
                over_network(url), url, "vllm_url", f"Check the address, start it again, or read its log. {_FIX}"
            )
            running.callback(client.close)
            running.callback(self._forget, client)
        else:
            client = self._started(running)
        running.callback(shutil.rmtree, self._folder, ignore_errors=True)
        self._room = client.context()
        return client

    def _started(self, running: ExitStack) -> Client:
        config, context = self._config, self._trainer.context
        models = models_of(config, None, DTYPES[Precision(context.plan["precision"])])
        base = base_config(models)
        check(models, base, len(self._trainer.processing_class))
        most = getattr(base.get_text_config(), "max_position_embeddings", None) or math.inf
        beside = Beside(config.vllm_memory, self._sleeps, config.lora_r, _FIX)
        self._free_memory()
        with context.report.during("loading vLLM"):
            room = int(min(config.max_length + config.max_completion_length, most))
            return running.enter_context(serving(models, room, context.stop.check, beside))

    @contextmanager
    def awake(self) -> Iterator[None]:
        """A context in which vLLM has the trainer's weights and does not sleep. A collective."""
        self._depth += 1
        if self._depth == 1:
            self._wake()
        yield
        self._depth -= 1
        if self._depth == 0 and self._sleeps:
            self._client.sleep()
            self._sleeping = True

    def _wake(self) -> None:
        client = self._client
        if self._sleeping:
            self._free_memory()
            client.wake()
            self._sleeping = False
        if self._loaded != (step := self._trainer.state.global_step):
            self._load_adapter(step)
            self._loaded, self._proved = step, False

    def _free_memory(self) -> None:
        """Gives back the memory that torch keeps for later tensors."""
        if self._trainer.args.device.type == "cuda":
            gc.collect()
            torch.cuda.empty_cache()

    def _load_adapter(self, step: int) -> None:
        """Loads the adapter, which each rank writes for the vLLM beside it, or rank 0 for a server. A collective."""
        rank, trainer = self._trainer.args.process_index, self._trainer
        folder = self._folder / (f"{step}" if self._config.vllm_url else f"{step}-{rank}")
        loads = rank == 0 or not self._config.vllm_url
        write_adapter(trainer.accelerator.unwrap_model(trainer.model), folder if loads else None)
        self._adapter = f"{self._prefix}{folder.name}"
        if loads:
            if self._loaded < 0 and (reason := refusal(folder)):
                raise NotLoaded("generation", "vllm", f"cannot load the adapter: it {reason}.", _FIX)
            self._unload(self._client)
            self._load_from(folder, self._adapter)
            shutil.rmtree(folder)
        barrier()

    @property
    def _prefix(self) -> str:
        return f"{self._trainer.context.run_dir.name}-"

    def _unload(self, client: Client) -> None:
        """Unloads the run's adapters, also those that a killed attempt left on a server."""
        for model in client.models():
            if str(model["id"]).startswith(self._prefix):
                client.unload_adapter(model["id"])

    def _forget(self, client: Client) -> None:
        """Leaves nothing on somebody's server, if it still answers."""
        if self._trainer.args.process_index == 0:
            with suppress(VllmError):
                self._unload(client)

    def _load_from(self, folder: Path, name: str) -> None:
        try:
            self._client.load_adapter(name, folder)
        except VllmError as error:
            if not self._config.vllm_url:
                raise
            message = f"did not load the adapter in {folder}: {error.message}"
            raise VllmError(error.status, self._config.vllm_url, message, _SHARED, "vllm_url") from error

    def drawn(self, batches: Sequence[Batch], purpose: int) -> list[list[list[int]]]:
        """One sample for each prompt of some micro batches, as tokens; their log-probabilities are in the batches. A collective.

        Raises:
            VllmError: vLLM ended, did not answer in time, or refused a request.
            OtherSampler: it has other weights or tokens than the trainer.
        """
        with self.awake():
            asked = [list(prompts(batch)) for batch in batches]
            seeds = [self._passes.seeds(batch, purpose) for batch in batches]
            flat = [one for part in asked for one in part]
            found = iter(self._answers(flat, [_seed(one) for part in seeds for one in part]))
            answers = [[next(found) for _ in part] for part in asked]
            for batch, part in zip(batches, answers, strict=True):
                logps = [torch.tensor(answer.logps) for answer in part]
                batch[SAMPLER_LOGPS] = pad_sequence(logps, batch_first=True, padding_value=math.nan)
            if not self._proved:
                self._prove(asked[0][:_COMPARED], answers[0][:_COMPARED])
                self._proved = True
        return [[answer.tokens for answer in part] for part in answers]

    def means(self) -> Means:
        """What the last comparison measured, for a rank's means."""
        values = torch.tensor([self.difference, 1.0], device=self._trainer.args.device)
        return {"sampler_difference": (values[0], values[1])}

    def greedy(self, batch: Batch) -> list[list[int]]:
        """The most probable answer to each prompt of a micro batch. A collective; raises as `drawn`."""
        with self.awake():
            return [answer.tokens for answer in self._answers(list(prompts(batch)), None)]

    def _answers(self, tokens: Sequence[list[int]], seeds: Sequence[int] | None) -> list[DrawnSample]:
        config, longest = self._config, self._config.max_completion_length
        # The defaults of a server's generation_config.json must not apply.
        body = {
            "model": self._adapter, "ignore_eos": True, "stop_token_ids": list(self._passes.ends),
            "temperature": 0 if seeds is None else config.temperature,
            "top_p": 1, "top_k": 0, "min_p": 0, "repetition_penalty": 1,
        }  # fmt: skip
        seconds = _SECONDS + _SECONDS_PER_TOKEN * longest

        def answer(index: int) -> DrawnSample:
            most = min(longest, self._room - len(tokens[index]))
            own = {"prompt": tokens[index], "max_tokens": most} | ({} if seeds is None else {"seed": seeds[index]})
            return self._checked(self._sample(body | own, seconds), tokens[index])

        with ThreadPoolExecutor(_AT_ONCE) as pool:
            return list(pool.map(answer, range(len(tokens))))

    def _sample(self, body: dict[str, Any], seconds: float) -> DrawnSample:
        """The answer to a request, sent again if vLLM is busy or the connection is lost: its seed draws the same sample."""
        for wait in _WAITS:
            try:
                return self._client.sample(body, seconds)
            except VllmError as error:
                if error.status not in _BUSY:
                    raise
            time.sleep(wait)
        return self._client.sample(body, seconds)

    def _checked(self, sample: DrawnSample, prompt: list[int]) -> DrawnSample:
        """The sample, whose tokens are those of the trainer's vocabulary, and which answers the prompt."""
        unknown = next((token for token in sample.tokens if not 0 <= token < self._passes.vocabulary), None)
        if unknown is not None:
            raise self._other(
                f"drew the token {unknown:,}, which is not among the {self._passes.vocabulary:,} of the model."
            )
        if sample.prompt != prompt or not sample.tokens or len(sample.logps) != len(sample.tokens):
            raise self._other(
                f"returned other tokens than it got: {len(prompt):,} of the prompt and {len(sample.prompt):,} back, "
                f"{len(sample.tokens):,} drawn with {len(sample.logps):,} log-probabilities."
            )
        return sample

    def _prove(self, tokens: Sequence[list[int]], answers: Sequence[DrawnSample]) -> None:
        """Compares the log-probabilities of samples with the trainer's own. A collective."""
        own = self._passes.logps(tokens, [answer.tokens for answer in answers])
        pairs = zip(own, answers, strict=True)
        gaps = torch.cat([(row[: len(one.logps)].cpu() - torch.tensor(one.logps)).abs() for row, one in pairs])
        gap = gaps[gaps.isfinite()].mean().nan_to_num(math.inf).to(self._trainer.args.device)
        self.difference = float(reduce_over_ranks(gap, dist.ReduceOp.MAX))
        if self.difference > (most := _ROUNDING.get(self._trainer.context.plan["precision"], _ROUNDING_16_BITS)):
            raise self._other(
                f"does not have the weights of the trainer: the log-probabilities of its samples differ by {self.difference:.3g} "
                f"nats per token from the trainer's own, and rounding explains {most:g}."
            )

    def _other(self, message: str) -> OtherSampler:
        field, value = ("vllm_url", self._config.vllm_url) if self._config.vllm_url else ("generation", "vllm")
        fix = f"Check that it serves {self._config.model}, with --logprobs-mode processed_logprobs if temperature is not 1."
        return OtherSampler(field, value, message, f"{fix if self._config.vllm_url else ''} {_FIX}".strip())


def can_sleep(device: torch.device) -> bool:
    """True if vLLM can free memory of the device and take it back."""
    return device.type == "cuda"


def _seed(numbers: Sequence[int]) -> int:
    """One number of 63 bits, as vLLM takes it, that depends on all of them."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> 1)
