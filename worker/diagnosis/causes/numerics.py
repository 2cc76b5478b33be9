"""Causes of failure: number formats, losses and gradients."""

from worker.diagnosis.cause import Cause, Kind, sign
from worker.diagnosis.conditions import mentions, unless

_ONLY_BF16 = r"\bbf16['\"]?[=:] ?True"

CAUSES = (
    Cause(
        "fp16_overflow",
        "fp16 overflowed at every step until the loss scale reached its minimum.",
        (
            sign(r"Current loss scale already at minimum", 0.98),
            sign(r"FloatingPointError: Minimum loss scale reached", 0.97),
            sign(r"OVERFLOW!.* Skipping step", 0.5, Kind.SYMPTOM),
        ),
        (
            "Set precision to bf16 if the GPU supports it (Ampere and later): it needs no loss scale. Models trained in bf16 often overflow in fp16.",
            "Otherwise set precision to fp32, or lower the learning rate.",
            "A few overflows in the first steps are normal, while the scale falls from its initial value.",
        ),
        changes={"precision": "bf16"},
    ),
    Cause(
        "loss_not_finite",
        "The loss or the gradient became NaN or infinite.",
        (
            sign(r"probability tensor contains either `inf`, `nan` or element < 0", 0.9),
            sign(
                r"(?:[Ll]oss|[Gg]radient norm|[Gg]rad norm) (?:is|became) (?:nan|inf|NaN)\W{0,3}(?:[Ss]topp|[Ee]xit|[Aa]bort)",
                0.9,
            ),
            sign(
                r"^(?:[\w.]+\.)?\w*Error: (?!.*must be).*(?:\b[Ll]oss|[Gg]radient|[Gg]rad norm|non-finite).*\b(?:nan|inf|NaN|Inf|NAN|non-finite)\b",
                0.85,
            ),
            sign(r"\bloss\W{0,3}tensor\((?:nan|inf)", 0.75, Kind.SYMPTOM, lasting=True),
            sign(r"Function '\w+' returned nan values in its \d+th output", 0.95),
            sign(
                r"['\"]?\b(?:\w*[Ll]oss|grad[_ ]norm)['\"]?\s*[:=]\s*['\"]?(?i:nan|inf)\b",
                0.75,
                Kind.SYMPTOM,
                lasting=True,
            ),
        ),
        (
            "Lower the learning rate, or raise the warmup.",
            "With fp16, set precision to bf16 or fp32; a model trained in bf16 may exceed the range of fp16.",
            "Look for rows with no loss tokens: their mean loss is 0 / 0.",
        ),
        changes={"precision": "auto", "learning_rate": 2e-5},
    ),
    Cause(
        "no_inf_checks",
        "The gradient scaler of fp16 found no gradients.",
        (sign(r"No inf checks were recorded for this optimizer", 0.98),),
        (
            "No trainable weight received a gradient: train an adapter (method qlora) if the weights are quantized, and do not freeze everything.",
            "With gradient checkpointing and frozen embeddings, call model.enable_input_require_grads().",
        ),
        changes={"method": "qlora"},
    ),
    Cause(
        "fp16_weights_trained",
        "fp16 weights were trained with a gradient scaler, which needs fp32 weights.",
        (sign(r"Attempting to unscale FP16 gradients", 0.98),),
        (
            "Load the trained weights in fp32 (torch_dtype=torch.float32) and leave fp16 to autocast.",
            "Or set precision to bf16, which has no scaler.",
        ),
        changes={"precision": "bf16"},
    ),
    Cause(
        "dtype_mismatch",
        "Two tensors of one operation have different dtypes.",
        (
            sign(r"(?:self|mat1) and mat2 must have the same dtype$", 0.93),
            sign(r"mat1 and mat2 to have the same dtype, but got: (?P<first>[\w:]+) != (?P<second>[\w:]+)", 0.95),
            sign(r"output tensor must have the same type as input tensor", 0.85),
            sign(
                r"expected (?:input|query|key|value).{0,40} to have (?:the same )?dtype|must have the same dtype as",
                0.8,
            ),
            sign(r"mat1 and mat2 must have the same dtype(?:, but got (?P<first>\w+) and (?P<second>\w+))?", 0.95),
            sign(r"expected (?:m1 and m2 to have the same dtype|scalar type \w+ but found \w+)", 0.93),
            sign(
                r"Input type \((?!MPS|torch\.cuda)\S+\) and (?:weight|bias) type \((?!MPS|torch\.cuda)\S+\) should be the same",
                0.93,
            ),
            sign(r"Input type \(torch\.cuda\S+\) and (?:weight|bias) type \(torch\.cuda\S+\) should be the same", 0.93),
            sign(r"RuntimeError: Found dtype (?P<first>\w+) but expected (?P<second>\w+)", 0.8),
            sign(r"Index put requires the source and destination dtypes match", 0.93),
        ),
        (
            "Load the whole model in one dtype (torch_dtype), and let autocast (precision bf16 or fp16) convert in each operation.",
            "With an adapter, look for a head or norm that was cast to fp32 (prepare_model_for_kbit_training): run it under autocast.",
        ),
        explanation="One is {first}, the other {second}.",
        changes={"precision": "auto"},
    ),
    Cause(
        "nothing_requires_grad",
        "The loss does not depend on any trainable weight.",
        (
            sign(r"element 0 of tensors does not require grad and does not have a grad_fn", 0.97),
            sign(r"none of output has requires_grad=True, this checkpoint\(\) is not necessary", 0.95),
            sign(r"One of the differentiated Tensors (?:does not require grad|appears to not have been used)", 0.9),
        ),
        (
            "With gradient checkpointing and a frozen model, call model.enable_input_require_grads(), or checkpoint with use_reentrant=False.",
            "Check that the adapter is active: model.print_trainable_parameters().",
        ),
    ),
    Cause(
        "backward_twice",
        "The backward pass ran twice through the same graph.",
        (sign(r"Trying to backward through the graph a second time", 0.95),),
        ("Compute the loss again for every backward pass, and detach states that are carried from batch to batch.",),
    ),
    Cause(
        "bf16_unsupported",
        "The device does not support bf16.",
        (
            sign(r"Your setup doesn't support bf16|bf16.*(?:is|are) not supported|doesn't support bf16/gpu", 0.96),
            sign(
                r"bf16 mixed precision (?:requires|with MPS device requires)|BF16 Mixed precision training with AMP.*can only be used on",
                0.95,
            ),
            sign(
                r"(?<!F16 )(?<!P16 )Mixed precision training with AMP.*can only be used on",
                0.8,
                when=mentions(_ONLY_BF16),
            ),
            sign(r"B[Ff]loat16 is (?:only|not) supported|Current (?:CUDA )?Device does not support bfloat16", 0.95),
        ),
        ("Set precision to fp16 on V100, T4 and older cards, or to fp32.",),
        changes={"precision": "fp16"},
    ),
    Cause(
        "fp16_unsupported",
        "fp16 mixed precision was asked for on a device without it: a CPU, or an Apple GPU with older versions of torch.",
        (
            sign(
                r"fp16 mixed precision (?:requires a (?:GPU|device)|with MPS device requires)|Tried to use `fp16` but it is not supported on cpu|Type fp16 is not supported",
                0.96,
            ),
            sign(r"\"(?!\w*cuda)\w+\" not implemented for 'Half'", 0.9),
            sign(r"FP16 Mixed precision training with AMP.*can only be used on", 0.96),
            sign(
                r"(?<!F16 )(?<!P16 )Mixed precision training with AMP.*can only be used on",
                0.93,
                when=unless(_ONLY_BF16),
            ),
            sign(r"AMP with fp16 is not supported on|precision='?16(?:-mixed)?'?\)?` (?:but|is not supported)", 0.9),
        ),
        (
            "Set precision to bf16 or fp32 (transformers: remove fp16=True).",
            "If the machine has a GPU, torch does not see it: check with `python -c 'import torch; print(torch.cuda.is_available())'`.",
        ),
        changes={"precision": "fp32"},
    ),
)
