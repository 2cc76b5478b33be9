"""Causes of failure: models, adapters, tokenizers and their data."""

from worker.diagnosis.cause import Cause, Kind, sign

CAUSES = (
    Cause(
        "state_dict_keys",
        "The names of the saved weights do not match the model's.",
        (
            sign(r"(?:Missing|Unexpected) key\(s\) in state_dict", 0.96),
            sign(r"Error\(s\) in loading state_dict for (?P<model>\w+)", 0.8, Kind.CONSEQUENCE),
        ),
        (
            "Load them into the class they were saved from. The prefix of the names shows the wrapper: `module.` is DDP, `_orig_mod.` is torch.compile, `base_model.model.` is PEFT.",
        ),
        explanation="The model is a {model}.",
    ),
    Cause(
        "size_mismatch",
        "The shape of a saved weight does not match the model's.",
        (
            sign(
                r"size mismatch for (?P<name>[\w.]+): copying a param with shape (?P<saved>torch\.Size\(\[[^\]]*\]\)).*shape in current model is (?P<model>torch\.Size\(\[[^\]]*\]\))",
                0.97,
            ),
            sign(r"ignore_mismatched_sizes=True", 0.9),
        ),
        (
            "If it is the embedding, resize it to the tokenizer (model.resize_token_embeddings) before you load the adapter or checkpoint.",
            "Otherwise use the base model and the LoRA r that the adapter was trained with. A shape of [0] is a weight that ZeRO-3 partitions: load it inside the ZeRO-3 context.",
        ),
        explanation="{name} is {saved} in the file and {model} in the model.",
    ),
    Cause(
        "model_type_unknown",
        "The installed transformers does not support this model type.",
        (
            sign(r"model type `(?P<model>[^`]+)` but Transformers does not recognize this architecture", 0.97),
            sign(r"KeyError: '(?P<model>mistral|mixtral|llama\d*|qwen\w*|gemma\w*|phi\w*|deepseek\w*)'", 0.85),
            sign(r"Tokenizer class (?P<model>\w+) does not exist or is not currently imported", 0.93),
            sign(r"Unrecognized model in \S+\. Should have a `model_type` key", 0.93),
        ),
        (
            "Install a newer transformers (pip install -U transformers). If config.json names no model_type, the folder is not a transformers model.",
        ),
        explanation="Model type: {model}.",
    ),
    Cause(
        "remote_code_refused",
        "The model or data set needs custom code, which is not allowed to run.",
        (
            sign(r"trust_remote_code=True", 0.9),
            sign(r"contains custom code which must be executed", 0.95),
            sign(r"Dataset scripts are no longer supported", 0.95),
        ),
        (
            "Choose a model that transformers supports, or a converted copy of it.",
            "If you have read the code and trust it, run it outside Lathe with trust_remote_code=True and a fixed revision.",
        ),
    ),
    Cause(
        "chat_template_missing",
        "The tokenizer has no chat template, and the data set contains chats.",
        (
            sign(
                r"tokenizer\.chat_template is not set|does not have a chat template|no template argument was passed",
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
        ),
        (
            "Set one: tokenizer.pad_token = tokenizer.eos_token, or add one and resize the embeddings; for classification also model.config.pad_token_id.",
        ),
    ),
    Cause(
        "rows_of_unequal_length",
        "Rows of different length could not be put into one batch.",
        (
            sign(r"Unable to create tensor, you should probably activate truncation and/or padding", 0.95),
            sign(
                r"stack expects each tensor to be equal size, but got \[(?P<first>[\d, ]*)\].*? and \[(?P<second>[\d, ]*)\]",
                0.93,
            ),
            sign(r"expected sequence of length \d+ at dim 1 \(got \d+\)", 0.93),
        ),
        (
            "Use a data collator that pads (DataCollatorForSeq2Seq pads labels too; DataCollatorWithPadding does not).",
            "Check that labels are flat lists with one number per token.",
        ),
    ),
    Cause(
        "sequence_too_long",
        "A sequence is longer than the model's maximum length.",
        (
            sign(
                r"sequence length is longer.*\((?P<length>\d+) > (?P<limit>\d+)\)[\s\S]{0,8000}?(?:index out of range in self|srcSelectDimSize` failed)",
                0.9,
            ),
            sign(r"sequence length is longer.*\((?P<length>\d+) > (?P<limit>\d+)\)", 0.6, Kind.SYMPTOM),
            sign(
                r"This model's maximum context length|exceeds the (?:model's )?maximum (?:sequence|context) length", 0.9
            ),
            sign(
                r"The size of tensor a \(\d+\) must match the size of tensor b \(\d+\) at non-singleton dimension [13].*",
                0.5,
                Kind.SYMPTOM,
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
                r"Assertion `(?:srcIndex < srcSelectDimSize|ind >= 0 && ind < ind_dim_size.*|-sizes\[i\] <= index && index < sizes\[i\].*)` failed",
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
        "target_modules_missing",
        "The adapter's target modules are not in the model.",
        (
            sign(r"Target modules (?P<names>.+?) not found in the base model", 0.97),
            sign(r"Please specify `target_modules` in `peft_config`", 0.95),
        ),
        ("Set target_modules to all-linear, or to modules of the model: `lathe targets --model MODEL` lists them.",),
        changes={"target_modules": "all-linear"},
    ),
    Cause(
        "quantized_full_finetune",
        "Quantized weights cannot be trained directly.",
        (
            sign(r"You cannot perform fine-tuning on purely quantized models", 0.98),
            sign(r"You can't train a model that has been loaded (?:in|with) `?(?:device_map|8-bit|4-bit)", 0.93),
            sign(r"only Tensors of floating point (?:and complex )?dtype can require gradients", 0.8),
        ),
        ("Train an adapter (method qlora), or load the weights unquantized.",),
        changes={"method": "qlora"},
    ),
    Cause(
        "quantized_device_move",
        "A quantized model was moved to another device after loading.",
        (
            sign(
                r"`\.to` is not supported for `?(?:4-bit|8-bit)|is not supported for `(?:4-bit|8-bit)` (?:or `8-bit` )?bitsandbytes models",
                0.96,
            ),
        ),
        ("Load it on its final device: device_map={'': local_rank}, and remove the call of .to() or .cuda().",),
    ),
    Cause(
        "flash_attention_unsupported",
        "FlashAttention does not support this GPU or this number format.",
        (
            sign(r"FlashAttention only support(?:s)? (?:fp16 and bf16|Ampere GPUs or newer)", 0.97),
            sign(r"Flash[_ ]?[Aa]ttention.*only supports? .*(?:dtype|float16)", 0.9),
        ),
        ("Set attention to sdpa. FlashAttention 2 needs an Ampere GPU or newer, and fp16 or bf16.",),
        changes={"attention": "sdpa"},
    ),
    Cause(
        "attention_unsupported",
        "The model does not support the requested attention implementation.",
        (
            sign(
                r"does not support (?:an attention implementation through torch\.nn\.functional\.scaled_dot_product_attention|Flash Attention \d|flex attention)",
                0.96,
            ),
        ),
        ("Set attention to auto or eager.",),
        changes={"attention": "eager"},
    ),
    Cause(
        "data_empty",
        "No rows are left to train on.",
        (
            sign(r"num_samples should be a positive integer value, but got num_samples=0", 0.95),
            sign(
                r"Corresponding data split \"?\w+\"? (?:not found|is empty)|contains no training (?:rows|examples)",
                0.85,
            ),
        ),
        (
            "Check what the filters, max_length and the split leave of the data; `lathe dataset check FILE` shows each row that is left out.",
        ),
    ),
    Cause(
        "data_not_consistent",
        "Rows or files of the data set have different columns or types.",
        (
            sign(
                r"DatasetGenerationCastError|CastError: Couldn't cast|All the data files must have the same columns|because column names don't match",
                0.95,
            ),
            sign(r"ArrowInvalid: (?:JSON parse error|Could not convert|Column\(.*\) changed from)", 0.93),
            sign(r"DatasetGenerationError: An error occurred while generating the dataset", 0.6, Kind.CONSEQUENCE),
        ),
        (
            "`lathe dataset check FILE` shows the first row of each problem. Give each column one type, and all files the same columns.",
        ),
    ),
)
