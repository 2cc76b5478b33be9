"""Causes of failure: tokenizers, chat templates, token ids and labels."""

from worker.diagnosis.cause import Cause, Kind, sign
from worker.diagnosis.conditions import at_code, within

CAUSES = (
    Cause(
        "chat_template_missing",
        "The tokenizer has no chat template, and the data set contains chats.",
        (
            sign(
                r"tokenizer\.chat_template is not set|does not have a chat template|no template argument was passed|has multiple chat templates with no default specified",
                0.96,
            ),
        ),
        (
            "Use the instruct variant of the model or its tokenizer, or put a chat_template.jinja beside tokenizer_config.json.",
            "Or map the data to prompt and completion, which need no template.",
        ),
    ),
    Cause(
        "pad_token_missing",
        "The tokenizer has no padding token, and a batch has rows of different length.",
        (
            sign(r"Asking to pad but the tokenizer does not have a padding token", 0.97),
            sign(r"Cannot handle batch sizes > 1 if no padding token is defined", 0.97),
            sign(
                r"You are attempting to pad samples but the tokenizer you are using .{1,200} does not have a pad token",
                0.96,
            ),
            sign(
                r"pad_token_id`? (?:has to be defined|must be set in the configuration|is missing in the `processing_class`)",
                0.93,
            ),
        ),
        (
            "Set one: tokenizer.pad_token = tokenizer.eos_token, or add one and resize the embeddings; for classification also model.config.pad_token_id.",
        ),
    ),
    Cause(
        "sequence_too_long",
        "A sequence is longer than the model's maximum length.",
        (
            sign(
                r"sequence length is longer.*\((?P<length>\d+) > (?P<limit>\d+)\)[\s\S]{0,8000}?(?:index out of range in self|srcSelectDimSize` failed)",
                0.95,
            ),
            sign(
                r"sequence length is longer.*\((?P<length>\d+) > (?P<limit>\d+)\)[\s\S]{0,8000}?\(\1\) must match the (?:existing )?size.* \(\2\)",
                0.9,
            ),
            sign(r"sequence length is longer.*\((?P<length>\d+) > (?P<limit>\d+)\)", 0.6, Kind.SYMPTOM),
            sign(
                r"This model's maximum context length|exceeds the (?:model's )?maximum (?:sequence|context) length", 0.9
            ),
            sign(
                r"The expanded size of the tensor \((?P<length>\d+)\) must match the existing size \((?P<limit>\d+)\) at non-singleton dimension 1\b",
                0.85,
                when=at_code(r"token_type_ids|position_ids|position_emb"),
            ),
            sign(
                r"The size of tensor a \((?P<length>\d+)\) must match the size of tensor b \((?P<limit>\d+)\) at non-singleton dimension 1\b",
                0.85,
                inside=r"position_embeddings$",
            ),
            sign(
                r"shape mismatch: value tensor of shape \[3, (?P<length>\d+)\] cannot be broadcast to indexing result of shape \[3, (?P<limit>\d+)\]",
                0.85,  # the position ids of a row with images (time, height, width)
            ),
            sign(
                r"Sequence length must be less than max_position_embeddings|sequence length \d+ cannot exceed the maximum allowed length",
                0.95,
            ),
        ),
        ("Set max_length to at most the model's max_position_embeddings: longer rows are then truncated.",),
        explanation="It has {length} tokens; the limit is {limit}.",
    ),
    Cause(
        "token_out_of_range",
        "A token id or a position is outside the embedding table.",
        (
            sign(r"IndexError: index out of range in self", 0.93),
            sign(
                r"Assertion `(?:srcIndex < srcSelectDimSize|ind >= 0 && ind < ind_dim_size.*|idx_dim >= 0 && idx_dim < index_size.*|-sizes\[i\] <= index && index < sizes\[i\].*)` failed",
                0.93,
            ),
        ),
        (
            "Use the tokenizer that belongs to the model; after adding tokens, call model.resize_token_embeddings(len(tokenizer)).",
            "Or a row is longer than the model's maximum length: lower max_length. Use -100 only in labels, never in input_ids.",
        ),
    ),
    Cause(
        "label_out_of_range",
        "A label is outside the model's classes or vocabulary.",
        (
            sign(r"Assertion `t >= 0 && t < n_classes` failed", 0.95),
            sign(r"IndexError: Target (?P<target>-?\d+) is out of bounds", 0.96),
        ),
        (
            "Number labels from 0 and set num_labels to their count; tokens without loss have label -100, not the padding id.",
        ),
        explanation="The label is {target}.",
    ),
    Cause(
        "tokenizer_file_newer",
        "tokenizer.json was written by a newer version of tokenizers than is installed.",
        (
            sign(r"data did not match any variant of untagged enum", 0.95),
            sign(r"Exception: (?:unknown variant|missing field) .* at line \d+ column \d+", 0.85),
        ),
        (
            "Install a newer tokenizers and transformers (pip install -U transformers tokenizers); tokenizers 0.20 changed the format of the merges.",
            "If the file was written by your own newer environment, save it again with the version that trains.",
        ),
    ),
    Cause(
        "chat_roles_invalid",
        "The chat template refuses the order or the names of the roles in a row.",
        (
            sign(r"[Cc]onversation roles must alternate(?P<order>.*)", 0.97),
            sign(r"TemplateError: .*(?:[Rr]oles?|[Ss]ystem (?:role|message)).*", 0.93),
            sign(r"UndefinedError: 'dict object' has no attribute '(?:role|content)'", 0.9),
            sign(r"UndefinedError: '(?:str|list) object' has no attribute '(?:role|content|get)'", 0.8),
            sign(r"Invalid role in (?:the last )?message: ", 0.93),
        ),
        (
            "Make each row start with a user turn (after at most one system turn) and alternate user and assistant.",
            "Some templates (Gemma, Mistral) know no system role: put its text before the first user turn.",
        ),
    ),
    Cause(
        "chat_template_failed",
        "The chat template could not be rendered: it has a mistake, or uses a field or variable that a row does not have.",
        (
            sign(r"(?:jinja2\.exceptions\.)?UndefinedError: (?P<what>.+)", 0.85),
            sign(r"(?:jinja2\.exceptions\.)?Template(?:Syntax|Runtime|Assertion)?Error: (?P<what>.+)", 0.8),
            sign(r"TypeError: Object of type Undefined is not JSON serializable", 0.9),
        ),
        (
            "Give the rows the field that the message names, or a value for it in chat_template_kwargs; `lathe dataset render` shows the first row that fails.",
            "If the template itself is wrong, use that of the model's current release, or set chat_template.",
        ),
        explanation="{what}",
    ),
    Cause(
        "image_tokens_mismatch",
        "A row has more or fewer image placeholders than image features.",
        (
            sign(
                r"(?:Image|Video)s? features and (?:image|video) tokens do not match[:,] tokens: (?P<tokens>\d+),? features:? (?P<features>\d+)",
                0.97,
            ),
            sign(
                r"shape mismatch: value tensor of shape \[(?P<features>\d+), (?P<hidden>\d{3,})\] cannot be broadcast to indexing result of shape \[(?P<tokens>\d+), (?P=hidden)\]",
                0.85,
                when=within(r"(?i)vl\b|_vl|llava|vision|image|internvl|gemma3|mllama|minicpm|pixtral"),
            ),
            sign(r"number of image tokens? .* (?:does not match|but got)|Mismatch in `image` token count", 0.9),
            sign(
                r"number of (?:image|video|audio)s? (?:tokens? )?.{0,80}(?:does not|doesn't|do not) match (?:the )?number of (?:<|image|video|audio)",
                0.95,
            ),
            sign(
                r"[Nn]umber of images provided \(\d+\) does not match|number of image tokens is \d+ while the number of image|causes image placeholder tokens in `input_ids` to be truncated",
                0.95,
            ),
        ),
        (
            "Raise max_length (cutoff_len), so that no image placeholder is cut off, or limit the size of images (image_max_pixels).",
            "Check that each row has one placeholder an image.",
        ),
        explanation="Tokens: {tokens}; features: {features}.",
    ),
    Cause(
        "ignored_tokens_decoded",
        "Labels of -100 (tokens without loss) were given to the tokenizer for decoding.",
        (
            sign(
                r"OverflowError: (?:out of range integral type conversion attempted|can't convert negative int to unsigned)",
                0.9,
            ),
        ),
        (
            "In compute_metrics, replace them first, in predictions and labels alike: labels = np.where(labels != -100, labels, tokenizer.pad_token_id).",
        ),
    ),
)
