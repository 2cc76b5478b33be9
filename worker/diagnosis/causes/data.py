"""Causes of failure: data sets and batches."""

from worker.diagnosis.cause import Cause, Kind, sign
from worker.diagnosis.conditions import at_code, mentions, unless

_UNEQUAL = r"expected sequence of length \d+ at dim \d+ \(got \d+\)|inhomogeneous (?:shape|part)"
_TEXT = r"too many dimensions 'str'|type `str` where type `int` is expected"
_ROW = r"(?i)row|example|sample|batch|item|record|entry|data|\bdf\b|feature|inst|line|messages?\[|msg|\bturns?\b|conv|tokeni|format|collat|\b[a-z]{1,2}\["
_SPLITS = r"(?:train|test|valid|validation|eval|dev)\w{0,8}"

CAUSES = (
    Cause(
        "rows_of_unequal_length",
        "Rows of different length could not be put into one batch.",
        (
            sign(
                r"Unable to create tensor, you should probably activate truncation and/or padding",
                0.93,
                when=mentions(_UNEQUAL),
            ),
            sign(
                r"Unable to create tensor, you should probably activate truncation and/or padding",
                0.8,
                when=unless(rf"{_UNEQUAL}|{_TEXT}"),
            ),
            sign(
                r"Unable to create tensor, you should probably activate truncation and/or padding",
                0.6,
                when=unless(rf"{_UNEQUAL}|`labels?` in this case"),
            ),
            sign(
                r"stack expects each tensor to be equal size, but got \[(?P<first>[\d, ]*)\].*? and \[(?P<second>[\d, ]*)\]",
                0.93,
            ),
            sign(r"expected sequence of length \d+ at dim 1 \(got \d+\)", 0.93),
            sign(
                r"each element in list of batch should be of equal size|returning overflowing tokens of different lengths",
                0.88,
            ),
        ),
        (
            "Use a data collator that pads (DataCollatorForSeq2Seq pads labels too; DataCollatorWithPadding does not).",
            "Check that labels are flat lists with one number per token, and that no column of text is left (remove_columns).",
        ),
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
            sign(
                r"Instruction \"[^\"]+\" corresponds to no data|resulting train set will be empty|EmptyDatasetError",
                0.85,
            ),
            sign(
                r"^(?:[\w.]+\.)?\w*(?:Error|Exception): (?:.* )?(?:[Nn]o (?:valid |usable )?(?:train(?:ing)? )?(?:batches|examples|samples|rows|data points)\b(?! (?:match|per|of)\b)|(?:[Tt]rain(?:ing)? |[Ff]iltered )?[Dd]ata ?(?:set|loader) (?:is|has become|was) empty|[Ee]mpty (?:train(?:ing)? )?data ?(?:set|loader)\b)",
                0.8,
            ),
            sign(r"SchemaInferenceError: Please pass `features` or at least one example", 0.85),
            sign(r"The batch received was empty, your model won't be able to train on it", 0.85),
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
                r"DatasetGenerationCastError|(?:Value|Type)Error: Couldn't cast|CastError: Couldn't cast|All the data files must have the same columns|because column names don't match",
                0.95,
            ),
            sign(
                r"ArrowInvalid: (?:JSON parse error|Could not convert|Column\(.*\) changed from|cannot mix list and)",
                0.93,
            ),
            sign(
                r"ArrowTypeError: Expected bytes, got a|ParserError: Error tokenizing data\. C error: Expected \d+ fields",
                0.9,
            ),
            sign(r"DatasetGenerationError: An error occurred while generating the dataset", 0.6, Kind.OUTCOME),
            sign(
                r"The columns in features .{1,400} must be identical as the columns in the dataset|The features can't be aligned because the key|[Ff]eatures of the new split don't match",
                0.93,
            ),
            sign(
                r"Couldn't infer the same data file format for all splits|Failed to convert pandas DataFrame to Arrow Table|Not able to read records in the JSON file|All columns must have values of the same length",
                0.8,
            ),
        ),
        (
            "`lathe dataset check FILE` shows the first row of each problem. Give each column one type, and all files the same columns.",
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
                rf"^(?:builtins\.)?KeyError: ['\"](?P<column>(?!\w+\.\w+\.)(?!{_SPLITS}['\"])[\w. -]+)['\"]",
                0.8,
                inside=r"datasets/arrow_dataset|datasets/formatting|datasets/iterable|_utils/(?:fetch|collate)|data_collator|[Cc]ollat|pandas/core/|/dataset_map|map_fn|preprocess|tokeniz(?!er)|convert|DATASETS|build_dataset|get_dataset|_get_merged|load_single|build_dataloader|formatting_func|prompt_strategies|prompt_tokenizers",
            ),
            sign(
                r"KeyError: ['\"](?P<column>messages|conversations?|response|question|answer|query|history|instruction|input|output|prompt|completion|chosen|rejected|text|from|value|role|content) ?['\"]",
                0.75,
                when=at_code(_ROW),
            ),
            sign(
                r"[Cc]olumns?(?:\(s\))?(?: name| to remove)? (?P<column>.{1,80}?) (?:not in the dataset|doesn't exist|does not exist)",
                0.95,
            ),
            sign(r"No columns in the dataset match the model's forward method signature", 0.93),
            sign(
                r"You should supply an encoding or a list of encodings to this method that includes (?P<column>\w+)",
                0.9,
            ),
            sign(r"KeyError: [\"']+(?:None of )?\[.{1,200}\] (?:not in index|are in the \[columns\])", 0.85),
            sign(
                r"^\w+Error: .*[Dd]ata ?(?:set|frame) (?:must|should|does not|needs to) (?:have|contain|include) (?:an? |the )?(?:column|field)?s? ?[`'\"\[](?P<column>\w+)",
                0.85,
            ),
            sign(
                r"^\w+Error: .*(?:[Ll]abel )?[Cc]olumns? \(?'?(?P<column>[\w. -]+?)'?\)? (?:is |are )?not (?:found )?in (?:the )?(?:data ?(?:set|frame)|table)",
                0.93,
            ),
            sign(
                r"^\w+Error: .*[Mm]issing (?:required |necessary |expected )?columns?\b(?: in [\w ]{1,30})?:? ?(?P<column>.{0,80})",
                0.85,
            ),
            sign(
                r"KeyError: .*not found in axis|Usecols do not match columns|KeyError: [\"']Invalid keys in the example",
                0.85,
            ),
            sign(
                r"AttributeError: 'DataFrame' object has no attribute '(?P<column>(?!append|iteritems|ix'|as_matrix|map'|features|column_names|train_test_split|set_format|with_format|rename_column|(?:add|cast|remove)_columns?'|num_rows|select'|push_to_hub|save_to_disk|to_pandas)\w+)'",
                0.65,
            ),
        ),
        (
            "Print the names of the columns (`lathe dataset check FILE` shows them) and set the columns of the program to them, or rename them.",
        ),
        explanation="Column: {column}.",
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
)
