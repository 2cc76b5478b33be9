"""The starter model's tokenizer: byte-level BPE that splits words, digits, punctuation and spaces.

Each space is a separate token, so a word has the same tokens after a space as after a quotation mark, which lets a
small model copy it. The vocabulary contains every byte, so any text can be encoded and decoded without loss.
"""

from collections.abc import Iterable

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

VOCABULARY_SIZE = 1024
CONTEXT = 512
PAD, BOS, EOS = "<|pad|>", "<|begin|>", "<|end|>"
ROLES = ("system", "user", "assistant")
SPECIAL_TOKENS = [PAD, BOS, EOS, *(f"<|{role}|>" for role in ROLES)]

CHAT_TEMPLATE = """\
{{- bos_token }}
{%- for message in messages %}
    {%- if message['role'] not in ['system', 'user', 'assistant'] %}
        {{- raise_exception("The chat template knows the roles system, user and assistant, not " + message['role'] + ".") }}
    {%- endif %}
    {{- '<|' + message['role'] + '|>' }}
    {%- if message['role'] == 'assistant' %}
        {%- generation %}{{- message['content'] + eos_token }}{%- endgeneration %}
    {%- else %}
        {{- message['content'] + eos_token }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|assistant|>' }}
{%- endif %}
"""

_PIECES = Regex(r"\p{N}|[\p{L}\p{M}]+|\s|[^\s\p{L}\p{M}\p{N}]")


def train_tokenizer(texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """A tokenizer of VOCABULARY_SIZE tokens for `texts`; the same texts give the same tokenizer."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(_PIECES, "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A {BOS} $B", special_tokens=[(BOS, tokenizer.token_to_id(BOS))]
    )
    return _wrapped(tokenizer)


def _wrapped(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=BOS,
        eos_token=EOS,
        pad_token=PAD,
        extra_special_tokens=[token for token in SPECIAL_TOKENS if token not in (PAD, BOS, EOS)],
        chat_template=CHAT_TEMPLATE,
        model_max_length=CONTEXT,
        clean_up_tokenization_spaces=False,
        padding_side="right",
    )
