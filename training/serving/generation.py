"""Generates answers by transformers."""

from typing import Any

import torch
from transformers import (
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    StoppingCriteria,
    StoppingCriteriaList,
)

from training.models.plain_decoding import plain_decoding
from training.serving.jobs import End, Job, Token
from training.serving.text import Detokenizer, UntilStop

GREEDY_BELOW = 1e-4  # with a lower temperature, logits leave the range of fp32


def generate(job: Job) -> None:
    """Generates the answer of a job and emits its tokens and its end."""
    request, served = job.request, job.served
    if request.seed is None:
        torch.seed()
    else:
        torch.manual_seed(request.seed % 2**63)
    with served.active() as module, plain_decoding(module), torch.inference_mode():
        ids = torch.tensor([job.prompt], device=module.device)
        probabilities, recorder = _Probabilities(), Recorder(job)
        module.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            generation_config=_configuration(job),
            logits_processor=LogitsProcessorList(_processors(job, probabilities)),
            stopping_criteria=StoppingCriteriaList([_Recording(recorder, probabilities)]),
        )
    job.emit(recorder.end())


def _configuration(job: Job) -> GenerationConfig:
    """Every value that changes the distribution is set: those of the base model's configuration must not apply."""
    request, sampled = job.request, dict[str, Any](do_sample=False)
    if request.temperature > GREEDY_BELOW:
        sampled = {"do_sample": True, "temperature": request.temperature, "top_p": request.top_p}
        sampled |= {"top_k": max(request.top_k, 0), "min_p": request.min_p}
        sampled |= {"typical_p": 1.0, "epsilon_cutoff": 0.0, "eta_cutoff": 0.0}
    return GenerationConfig(
        **sampled,
        max_new_tokens=job.max_tokens,
        eos_token_id=list(job.ends) or None,
        pad_token_id=job.served.ends[0] if job.served.ends else 0,
        repetition_penalty=1.0,
        num_beams=1,
        use_cache=True,
    )


def _processors(job: Job, probabilities: "_Probabilities") -> list[LogitsProcessor]:
    """What reads or changes the logits before temperature, top_p, top_k and min_p; the first sees those of the model."""
    request, device = job.request, job.served.module.device
    processors = [] if request.wanted_logprobs is None else [probabilities]
    if request.repetition_penalty != 1:
        processors.append(RepetitionPenaltyLogitsProcessor(request.repetition_penalty))
    if request.min_tokens and job.ends:
        before = 1 if job.served.reads_prompt else len(job.prompt)  # a decoder's own input begins with its start token
        processors.append(MinNewTokensLengthLogitsProcessor(before, request.min_tokens, list(job.ends), device))
    return processors


class _Probabilities(LogitsProcessor):  # type: ignore[misc]
    """Keeps the model's own distribution (vocabulary,) of the next token: before temperature, top_p and top_k."""

    def __init__(self) -> None:
        self._latest: torch.Tensor | None = None

    def __call__(self, _input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self._latest = torch.log_softmax(scores[0].float(), dim=-1)
        return scores

    def of(self, token: int, most: int) -> tuple[float | None, tuple[tuple[int, float], ...]]:
        """The log probability of the chosen token, and the `most` likely tokens with theirs."""
        if self._latest is None:
            return None, ()
        best = self._latest.topk(min(most, len(self._latest)))
        return float(self._latest[token]), tuple(zip(best.indices.tolist(), best.values.tolist(), strict=True))


class Recorder:
    """Emits each token of an answer; ends it at an end token or a stop string, or when the client has gone."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self._ends = set(job.ends)
        self._text, self._until = Detokenizer(job.served.tokenizer), UntilStop(job.request.stop)
        self._ended = False
        self._tokens = self._characters = 0

    def add(self, token: int, logprob: float | None, alternatives: tuple[tuple[int, float], ...]) -> None:
        self._ended, self._tokens = token in self._ends, self._tokens + 1
        text = "" if self._ended else self._text.add(token)
        offset = self._offset(token, text)
        self._characters += len(text)
        if self._tokens > self.job.request.min_tokens:
            text = self._until.add(text)
        self.job.emit(Token(token, text, logprob, alternatives, offset))

    def _offset(self, token: int, text: str) -> int:
        """Where the token begins in the answer. `text` may begin with what bytes before it left incomplete."""
        if self.job.request.wanted_logprobs is None:
            return 0
        piece = self.job.served.token_bytes.of(token).decode(errors="ignore")
        before = len(text) - len(piece) if piece and text.endswith(piece) else 0
        return self._characters + before

    @property
    def is_over(self) -> bool:
        """True if no further token is wanted, other than after an end token."""
        return self._until.stopped or self.job.cancelled.is_set()

    def end(self) -> End:
        rest = self._until.add(self._text.rest()) + self._until.rest()
        return End("stop" if self._ended or self._until.stopped else "length", rest)


class _Recording(StoppingCriteria):  # type: ignore[misc]
    """Records each token after its step."""

    def __init__(self, recorder: Recorder, probabilities: _Probabilities) -> None:
        self._recorder, self._probabilities = recorder, probabilities

    def __call__(self, input_ids: torch.Tensor, _scores: torch.Tensor, **_: Any) -> torch.Tensor:
        token = int(input_ids[0, -1])
        self._recorder.add(token, *self._probabilities.of(token, self._recorder.job.request.wanted_logprobs or 0))
        over = self._recorder.is_over
        return torch.full((input_ids.shape[0],), over, device=input_ids.device, dtype=torch.bool)
