"""Pretraining of the starter model: a small Llama, a stream of generated documents, one plain loop."""

import time
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from random import Random

import torch
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from training.starter_chat import chat
from training.starter_text import plain_text
from training.starter_tokenizer import CONTEXT
from training.starter_words import generator

CHAT_SHARE = 0.75
TOKENS_PER_STEP = 4096
MATRIX_LEARNING_RATE = 2e-2
OTHER_LEARNING_RATE = 8e-3
WARMUP_STEPS = 50


def build_model(tokenizer: PreTrainedTokenizerFast, seed: int) -> LlamaForCausalLM:
    """A Llama of about a million parameters with random weights, its special tokens set as the tokenizer's."""
    torch.manual_seed(seed)
    special = {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("bos", "eos", "pad")}
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        dtype="float32",
        **special,
    )
    model = LlamaForCausalLM(config)
    model.generation_config = GenerationConfig(do_sample=False, **special)
    return model


def document(rng: Random, tokenizer: PreTrainedTokenizerFast) -> str:
    """One document as the model sees it: a conversation in the chat template, or plain text between begin and end."""
    if rng.random() < CHAT_SHARE:
        return str(tokenizer.apply_chat_template(chat(rng), tokenize=False))
    return f"{tokenizer.bos_token}{plain_text(rng)}{tokenizer.eos_token}"


def batches(tokenizer: PreTrainedTokenizerFast, seed: int, documents: int = 4096) -> Iterator[torch.Tensor]:
    """Endless batches of token ids, shape (rows, length), about TOKENS_PER_STEP each; padded at the end of a row.

    Documents of like length share a batch, so little is padding and no document sees another.
    """
    rng = generator(f"pretraining {seed}")
    while True:
        texts = [document(rng, tokenizer) for _ in range(documents)]
        rows = [ids for ids in _encode(tokenizer, texts) if len(ids) <= CONTEXT]
        rows.sort(key=len)
        groups = list(_groups(rows))
        rng.shuffle(groups)
        for group in groups:
            yield tokenizer.pad({"input_ids": group}, return_tensors="pt")["input_ids"]


def _encode(tokenizer: PreTrainedTokenizerFast, texts: list[str]) -> list[list[int]]:
    return [encoding.ids for encoding in tokenizer.backend_tokenizer.encode_batch(texts, add_special_tokens=False)]


def _groups(rows: list[list[int]]) -> Iterator[list[list[int]]]:
    """Rows, shortest first, in groups whose padded size stays within TOKENS_PER_STEP."""
    group: list[list[int]] = []
    for row in rows:
        if group and len(row) * (len(group) + 1) > TOKENS_PER_STEP:
            yield group
            group = []
        group.append(row)
    yield group


def optimizers(model: LlamaForCausalLM) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of the layers, AdamW for embeddings and norms: on this text half the steps of AdamW alone."""
    matrices = [weight for weight in model.model.layers.parameters() if weight.ndim == 2]
    others = [weight for weight in model.model.layers.parameters() if weight.ndim != 2]
    others += [*model.model.embed_tokens.parameters(), *model.model.norm.parameters()]
    return [
        torch.optim.Muon(matrices, lr=MATRIX_LEARNING_RATE, weight_decay=0.05, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, lr=OTHER_LEARNING_RATE, betas=(0.9, 0.98), weight_decay=0.0),
    ]


def schedule(step: int, steps: int) -> float:
    """The share of the peak learning rate at `step`: linear warmup, then linear down to a twentieth."""
    return min(1.0, (step + 1) / WARMUP_STEPS) * (0.05 + 0.95 * (1 - step / steps))


def pretrain(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, *, steps: int, seed: int, say: Callable[[str], object] = print
) -> float:
    """Trains `model` in place for `steps` batches; returns the mean loss (nats a token) of the last fifty."""
    both = optimizers(model)
    schedulers = [torch.optim.lr_scheduler.LambdaLR(one, lambda step: schedule(step, steps)) for one in both]
    losses: deque[float] = deque(maxlen=50)
    start = time.monotonic()
    model.train()
    for step, ids in enumerate(islice(batches(tokenizer, seed), steps), start=1):
        losses.append(_train_step(model, ids, both))
        for scheduler in schedulers:
            scheduler.step()
        if step % 50 == 0:
            say(f"step {step}/{steps}  loss {sum(losses) / len(losses):.3f}  {time.monotonic() - start:.0f} s")
    model.eval()
    return sum(losses) / len(losses)


def _train_step(model: LlamaForCausalLM, ids: torch.Tensor, both: list[torch.optim.Optimizer]) -> float:
    """Forward, backward and update on ids of shape (rows, length); the loss in nats a token."""
    labels = ids.masked_fill(ids == model.config.pad_token_id, -100)
    loss: torch.Tensor = model(input_ids=ids, labels=labels, use_cache=False).loss
    torch.autograd.backward(loss)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for optimizer in both:
        optimizer.step()
        optimizer.zero_grad()
    return loss.item()
