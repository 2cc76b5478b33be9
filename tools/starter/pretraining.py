"""Pretrains the starter model, a small Llama, on an endless stream of generated conversations."""

import time
from collections import deque
from collections.abc import Callable, Iterator
from itertools import chain, islice
from random import Random

import torch
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from tools.starter.chats import chat
from tools.starter.tokenizer import CONTEXT, SPECIAL_TOKENS
from tools.starter.words import generator

TOKENS_PER_STEP = 2048
ANSWER_WEIGHT = 8.0  # answers follow from the context; the text of the orders is mostly random
MATRIX_LEARNING_RATE = 8e-3
OTHER_LEARNING_RATE = 3e-3
WARMUP_STEPS = 50
ROPE_THETA = 1000.0
ECHO_STEPS = 250
SPACED = 0.3
LOOK_BACK_STRENGTH = 4.6


def build_model(tokenizer: PreTrainedTokenizerFast, seed: int) -> LlamaForCausalLM:
    """A Llama of about a million parameters with random weights and the tokenizer's special tokens."""
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
        attention_bias=True,
        rope_parameters={"rope_type": "default", "rope_theta": ROPE_THETA},
        dtype="float32",
        **special,
    )
    model = LlamaForCausalLM(config)
    look_back(model)
    model.generation_config = GenerationConfig(do_sample=False, **special)
    return model


def look_back(model: LlamaForCausalLM) -> None:
    """Sets the first layer's heads 0 and 1 to attend one and two tokens back, by the biases of their queries and keys.

    Rotary position embedding rotates each pair of bias components by position x frequency, so the score of two biases is a sum
    of cosines of the distance; with these phases it is largest at the chosen distance. Copying from the context needs such
    heads, and without them the loss stays on a plateau for many steps.
    """
    config, attention = model.config, model.model.layers[0].self_attn
    size = config.hidden_size // config.num_attention_heads
    frequencies = ROPE_THETA ** (-torch.arange(0, size, 2) / size)
    with torch.no_grad():
        for head, distance in enumerate((1, 2)):
            part = slice(head * size, (head + 1) * size)
            phases = torch.cat([torch.cos(frequencies * distance), -torch.sin(frequencies * distance)])
            attention.q_proj.bias[part] = LOOK_BACK_STRENGTH * phases
            attention.k_proj.bias[part] = LOOK_BACK_STRENGTH * torch.cat(
                [torch.ones(size // 2), torch.zeros(size // 2)]
            )


def echoes(tokenizer: PreTrainedTokenizerFast, seed: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yields batches of random token sequences, repeated up to the row's length; only the repeats carry loss."""
    rng = generator(f"echoes {seed}")
    while True:
        length = rng.choice([48, 64, 96, 128])
        rows = [_echo(rng, tokenizer, length) for _ in range(2 * TOKENS_PER_STEP // length)]
        yield torch.tensor([ids for ids, _ in rows]), torch.tensor([weights for _, weights in rows])


def _echo(rng: Random, tokenizer: PreTrainedTokenizerFast, length: int) -> tuple[list[int], list[float]]:
    space = tokenizer.convert_tokens_to_ids("\u0120") if rng.random() < SPACED else None
    period: list[int] = []
    for _ in range(rng.randint(2, 16)):
        word = [rng.randrange(len(SPECIAL_TOKENS), len(tokenizer)) for _ in range(rng.choice([1, 1, 2, 3]))]
        period += [*word, space] if space else word
    period = [*period[: length // 2 - 2], tokenizer.convert_tokens_to_ids(SPECIAL_TOKENS[-1])]
    ids = [tokenizer.bos_token_id, *period * length][:length]
    first = len(period) + 2
    return ids, [0.0] * first + [ANSWER_WEIGHT] * (length - first)


def batches(
    tokenizer: PreTrainedTokenizerFast, seed: int, chats: int = 4096
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yields token ids and loss weights, both of shape (rows, length), with about TOKENS_PER_STEP tokens.

    Conversations of similar length share a batch, which limits padding; padding has weight 0.
    """
    rng = generator(f"pretraining {seed}")
    while True:
        encoded = tokenizer.apply_chat_template(
            [chat(rng) for _ in range(chats)], return_dict=True, return_assistant_tokens_mask=True
        )
        rows = sorted(zip(encoded["input_ids"], encoded["assistant_masks"], strict=True), key=lambda row: len(row[0]))
        groups = list(_groups([row for row in rows if len(row[0]) <= CONTEXT]))
        rng.shuffle(groups)
        for group in groups:
            yield _padded([ids for ids, _ in group], tokenizer.pad_token_id), _weights([mask for _, mask in group])


def _groups(rows: list[tuple[list[int], list[int]]]) -> Iterator[list[tuple[list[int], list[int]]]]:
    """Yields groups of rows, which are sorted by length, with at most TOKENS_PER_STEP tokens after padding."""
    group: list[tuple[list[int], list[int]]] = []
    for row in rows:
        if group and len(row[0]) * (len(group) + 1) > TOKENS_PER_STEP:
            yield group
            group = []
        group.append(row)
    yield group


def _padded(rows: list[list[int]], value: int) -> torch.Tensor:
    tensors = [torch.tensor(row) for row in rows]
    return torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True, padding_value=value)


def _weights(masks: list[list[int]]) -> torch.Tensor:
    return _padded([[ANSWER_WEIGHT if answers else 1.0 for answers in mask] for mask in masks], 0)  # type: ignore[misc]


def optimizers(model: LlamaForCausalLM) -> list[torch.optim.Optimizer]:
    """Muon for the layers' matrices, AdamW for embeddings, norms and biases."""
    matrices = [weight for weight in model.model.layers.parameters() if weight.ndim == 2]
    others = [weight for weight in model.model.layers.parameters() if weight.ndim != 2]
    others += [*model.model.embed_tokens.parameters(), *model.model.norm.parameters()]
    return [
        torch.optim.Muon(matrices, lr=MATRIX_LEARNING_RATE, weight_decay=0.05, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, lr=OTHER_LEARNING_RATE, betas=(0.9, 0.98), weight_decay=0.0),
    ]


def schedule(step: int, steps: int) -> float:
    """The learning rate at `step` as a share of its peak: linear warmup, linear decay to 1/20."""
    return min(1.0, (step + 1) / WARMUP_STEPS) * (0.05 + 0.95 * (1 - step / steps))


def pretrain(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    *,
    steps: int,
    seed: int,
    say: Callable[[str], object] = print,
) -> float:
    """Trains `model` in place for `steps` batches; returns the mean answer loss (nats per token) of the last 50."""
    both = optimizers(model)
    schedulers = [
        torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: schedule(step, steps)) for optimizer in both
    ]
    losses: deque[float] = deque(maxlen=50)
    start = time.monotonic()
    model.train()
    for step, (ids, weights) in enumerate(
        chain(islice(echoes(tokenizer, seed), ECHO_STEPS), islice(batches(tokenizer, seed), steps - ECHO_STEPS)),
        start=1,
    ):
        losses.append(_train_step(model, ids, weights, both))
        for scheduler in schedulers:
            scheduler.step()
        if step % 50 == 0:
            say(
                f"step {step}/{steps}  loss on answers {sum(losses) / len(losses):.3f}  {time.monotonic() - start:.0f} s"
            )
    model.eval()
    return sum(losses) / len(losses)


def _train_step(
    model: LlamaForCausalLM, ids: torch.Tensor, weights: torch.Tensor, both: list[torch.optim.Optimizer]
) -> float:
    """Runs one training step on ids and weights of shape (rows, length); returns the answer loss in nats per token."""
    logits = model(input_ids=ids, use_cache=False).logits[:, :-1]
    losses = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
    weight = weights[:, 1:].flatten()
    torch.autograd.backward((losses * weight).sum() / weight.sum())
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for optimizer in both:
        optimizer.step()
        optimizer.zero_grad()
    answers = weight == ANSWER_WEIGHT
    return float(losses.detach()[answers].mean())
