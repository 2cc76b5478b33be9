"""Causes of failure: models, adapters and checkpoints."""

from worker.diagnosis.cause import Cause, sign
from worker.diagnosis.conditions import within

_SLOW = r"(?!GPTNeoX|Bloom|Cohere|Falcon|PreTrained)\w+"  # of the others there is only a fast tokenizer

CAUSES = (
    Cause(
        "model_type_unknown",
        "The installed transformers does not support this model type, or not for this task.",
        (
            sign(r"model type `(?P<model>[^`]+)` but Transformers does not recognize this architecture", 0.97),
            sign(
                r"KeyError: '(?P<model>mistral|mixtral|llama\d*|qwen\w*|gemma\w*|phi\w*|deepseek\w*)'",
                0.85,
                when=within(r"configuration_auto|auto_factory|transformers/models/auto"),
            ),
            sign(
                rf"Tokenizer class '?(?P<model>{_SLOW})'? (?:does not exist or is not currently imported|is not currently imported|specified in the tokenizer config was not found)",
                0.75,
            ),
            sign(r"KeyError: '(?P<model>[\w.-]+)'", 0.85, inside=r"configuration_auto\.py (?:\w+\.)?__getitem__"),
            sign(
                r"Unsloth: (?P<model>\S+) is not supported in your current transformers|TypeError: (?P<kind>[\w-]+) isn't supported yet\.",
                0.85,
            ),
            sign(r"Unsloth: Your transformers version of \S+ does not support (?P<model>\S+?)\.?$", 0.96),
            sign(
                r"Unrecognized configuration class <class '[\w.]*?(?P<model>\w+)'> (?:for this kind of AutoModel|to build an Auto)",
                0.88,
            ),
            sign(r"Unrecognized model in \S+\. Should (?:have|contain) (?:a `model_type` key|one of)", 0.93),
        ),
        (
            "Install a newer transformers (pip install -U transformers), or choose a model that has a class for the task. If config.json names no model_type, the folder is not a transformers model.",
        ),
        explanation="Model type: {model}.",
    ),
    Cause(
        "remote_code_refused",
        "The model or data set needs custom code, which is not allowed to run.",
        (
            sign(r"(?:[Pp]ass|set) the (?:option|argument) `?trust_remote_code=True`?", 0.93),
            sign(r"requires? you to execute the .* file in that repo", 0.95),
            sign(r"contains custom code which must be executed", 0.95),
            sign(r"Dataset scripts are no longer supported", 0.95),
            sign(r"EOFError: EOF when reading a line", 0.85, inside=r"trust_remote_code"),
        ),
        (
            "Choose a model that transformers supports, or a converted copy of it.",
            "If you have read the code and trust it, run it outside Lathe with trust_remote_code=True and a fixed revision.",
        ),
    ),
    Cause(
        "target_modules_missing",
        "The adapter's target modules are not in the model, or of a kind that it does not support.",
        (
            sign(r"Target modules (?P<names>.+?) not found in the base model", 0.97),
            sign(r"Please specify `target_modules` in `peft_config`", 0.95),
            sign(
                r"No modules were targeted for adaptation|All modules were excluded\. This is likely|No `target_modules` passed but also no",
                0.93,
            ),
            sign(r"Please specify (?:`target_modules` or `target_parameters`|`feedforward_modules`)", 0.95),
            sign(
                r"None of the target modules were found|No target modules found for|modules_to_save cannot be applied to modules of type|is incompatible with Mamba-based models",
                0.85,
            ),
            sign(r"Target module .{1,4000} is not supported\. Currently, only", 0.9),
        ),
        ("Set target_modules to all-linear, or to modules of the model: `lathe targets --model MODEL` lists them.",),
        changes={"target_modules": "all-linear"},
    ),
    Cause(
        "quantized_full_finetune",
        "Quantized weights cannot be trained directly.",
        (
            sign(r"You cannot perform fine-tuning on purely quantized models", 0.98),
            sign(r"The model you (?:want to train is loaded in|are trying to fine-tune is quantized with) ", 0.93),
            sign(r"You can't train a model that has been loaded in (?!.*different device).*(?:4|8)-bit", 0.93),
            sign(r"[Oo]nly Tensors of floating point (?:and complex )?dtype can require gradients", 0.8),
        ),
        ("Train an adapter (method qlora), or load the weights unquantized.",),
        changes={"method": "qlora"},
    ),
    Cause(
        "quantized_device_move",
        "A quantized model was moved to another device after loading.",
        (
            sign(
                r"`\.to` is not supported for `?(?:4-bit|8-bit)|is not supported for `(?:4-bit|8-bit)` (?:or `8-bit` )?(?:bitsandbytes|quantized) models",
                0.96,
            ),
            sign(
                r"You can't train a model that has been loaded in .* on a different device than the one you're training",
                0.95,
            ),
        ),
        ("Load it on its final device: device_map={'': local_rank}, and remove the call of .to() or .cuda().",),
    ),
    Cause(
        "flash_attention_unsupported",
        "FlashAttention does not support this GPU or this number format.",
        (
            sign(r"FlashAttention only support(?:s)? (?:fp16 and bf16|Ampere GPUs or newer)", 0.97),
            sign(r"Flash ?Attention ?\d? (?:is not available on|requires compute capability)", 0.93),
            sign(
                r"attempting to use Flash Attention \S+ with a model (?:not initialized on GPU and with no GPU|dispatched on CPU or disk)",
                0.85,
            ),
            sign(r"Expected is_sm(?:80|8x|90).* to be true, but got false", 0.93),
            sign(r"^\w*(?:Error|Exception): .*[Ff]lash[_ ]?[Aa]ttention.*only supports? .*(?:dtype|float16)", 0.88),
        ),
        ("Set attention to sdpa. FlashAttention 2 needs an Ampere GPU or newer, and fp16 or bf16.",),
        changes={"attention": "sdpa"},
    ),
    Cause(
        "attention_unsupported",
        "The model does not support the requested attention implementation.",
        (
            sign(
                r"does not support (?:an attention implementation through torch(?:\.nn\.functional\.scaled_dot_product_attention|'s flex_attention)|Flash Attention \d|flex attention)",
                0.96,
            ),
            sign(
                r"Specified `attn_implementation=\"(?P<name>[^\"]+)\"` is not supported|is not a valid attention implementation registered",
                0.85,
            ),
        ),
        ("Set attention to auto or eager.",),
        changes={"attention": "eager"},
    ),
    Cause(
        "loss_missing",
        "The model returned no loss, since the batch has no labels.",
        (
            sign(r"The model did not return a loss from the inputs, only the following keys: (?P<keys>[\w,]+)", 0.97),
            sign(r"cannot be used as is for training: it only computes hidden states", 0.93),
        ),
        (
            "Give the rows a column labels, or a collator that makes them (DataCollatorForLanguageModeling with mlm=False).",
            "remove_unused_columns drops columns that the model's forward does not name: with a wrapped model set it to false, or set label_names.",
        ),
        explanation="It returned: {keys}.",
    ),
    Cause(
        "processor_missing",
        "A multimodal model's processor could not be loaded.",
        (
            sign(r"Processor was not found, please check and update your model file", 0.96),
            sign(
                r"Can't load (?:image processor|feature extractor|processor) for '(?P<name>[^']+)'|does not appear to have a file named preprocessor_config\.json",
                0.8,
            ),
            sign(r"Unrecognized (?:processing class|image processor|feature extractor|video processor) in ", 0.85),
        ),
        (
            "The model's folder needs preprocessor_config.json and processor_config.json (copy them from the original model), and a transformers version that knows the processor.",
        ),
    ),
)
