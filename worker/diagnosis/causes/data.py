"""Causes of failure: data sets, tokenizers and batches."""

from worker.diagnosis.cause import Cause, Kind, sign

CAUSES = (
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
                0.95,
            ),
            sign(r"sequence length is longer.*\((?P<length>\d+) > (?P<limit>\d+)\)", 0.6, Kind.SYMPTOM),
            sign(
                r"This model's maximum context length|exceeds the (?:model's )?maximum (?:sequence|context) length", 0.9
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
        "data_empty",
        "No rows are left to train on.",
        (
            sign(
                r"IndexError: Invalid key: \d+ is out of bounds for size 0|Error occurred while packing the dataset\. Make sure|Cannot find valid samples",
                0.95,
            ),
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
                r"DatasetGenerationCastError|ValueError: Couldn't cast|CastError: Couldn't cast|All the data files must have the same columns|because column names don't match",
                0.95,
            ),
            sign(r"ArrowInvalid: (?:JSON parse error|Could not convert|Column\(.*\) changed from)", 0.93),
            sign(r"DatasetGenerationError: An error occurred while generating the dataset", 0.6, Kind.CONSEQUENCE),
        ),
        (
            "`lathe dataset check FILE` shows the first row of each problem. Give each column one type, and all files the same columns.",
        ),
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
        ),
        (
            "Make each row start with a user turn (after at most one system turn) and alternate user and assistant.",
            "Some templates (Gemma, Mistral) know no system role: put its text before the first user turn.",
        ),
    ),
    Cause(
        "dataset_undefined",
        "The data set is not in LLaMA-Factory's dataset_info.json.",
        (sign(r"Undefined dataset (?P<name>\S+) in dataset_info\.json", 0.98),),
        (
            "Add an entry for it to dataset_info.json in the folder dataset_dir, and give its key, not a path.",
            "Relative paths start from the folder in which the program is started.",
        ),
        explanation="Given: {name}.",
    ),
    Cause(
        "dataset_column_missing",
        "The data set has no column of the name that the program reads.",
        (
            sign(
                r"^(?:builtins\.)?KeyError: ['\"](?P<column>(?!\w+\.\w+\.)[\w. -]+)['\"]",
                0.8,
                inside=r"datasets/arrow_dataset|datasets/formatting|/dataset_map|map_fn|preprocess|tokeniz|convert|DATASETS|build_dataset|get_dataset|_get_merged|load_single|build_dataloader|formatting_func|prompt_strategies|prompt_tokenizers",
            ),
            sign(
                r"KeyError: ['\"](?P<column>messages|conversations?|response|question|answer|query|history|instruction|input|output|prompt|completion|chosen|rejected|text|from|value|role|content) ?['\"]",
                0.8,
            ),
            sign(
                r"Column(?:\(s\))? (?P<column>.{1,80}?) (?:not in the dataset|doesn't exist|does not exist)|Column name \S+ not in the dataset",
                0.95,
            ),
            sign(r"No columns in the dataset match the model's forward method signature", 0.93),
        ),
        (
            "Print the names of the columns (`lathe dataset check FILE` shows them) and set the columns of the program to them, or rename them.",
        ),
        explanation="Column: {column}.",
    ),
    Cause(
        "image_tokens_mismatch",
        "A row has more or fewer image placeholders than image features.",
        (
            sign(
                r"Image features and image tokens do not match: tokens: (?P<tokens>\d+), features:? (?P<features>\d+)",
                0.97,
            ),
            sign(r"number of image tokens? .* (?:does not match|but got)|Mismatch in `image` token count", 0.9),
        ),
        (
            "Raise max_length (cutoff_len), so that no image placeholder is cut off, or limit the size of images (image_max_pixels).",
            "Check that each row has one placeholder an image.",
        ),
        explanation="Tokens: {tokens}; features: {features}.",
    ),
    Cause(
        "dataset_worker_died",
        "A process that prepares the data set died.",
        (sign(r"One of the subprocesses has abruptly died during map operation", 0.95),),
        (
            "Usually it ran out of memory: use fewer preprocessing processes (num_proc, preprocessing_num_workers), or a smaller writer_batch_size for rows with images.",
            "With one process (num_proc=1) the error itself is shown.",
        ),
    ),
    Cause(
        "map_changes_row_count",
        "A function that prepares a batch of rows returned another number of rows than it was given.",
        (
            sign(
                r"Column \d+ named (?P<column>\S+) expected length (?P<expected>\d+) but got length (?P<got>\d+)", 0.96
            ),
        ),
        (
            "Remove the old columns in the same call: dataset.map(function, batched=True, remove_columns=dataset.column_names).",
        ),
        explanation="Column {column}: {got} rows instead of {expected}.",
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
