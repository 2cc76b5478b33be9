"""A sentence for each choice of each setting, which the form shows below the chosen one. No torch."""

from training.config.choices import Method
from training.config.labels import choice_label

_METHODS = {
    "lora": "Trains low-rank matrices beside frozen weights.",
    "qlora": "LoRA on base weights quantized to 4 or 8 bits.",
    "full": "Trains all weights; needs the most memory.",
    "adalora": "LoRA that moves rank to the layers that need it.",
    "adaption_prompt": "Trains prompts that enter the upper layers.",
    "boft": "Rotates weights by butterfly-factored orthogonal matrices.",
    "fourierft": "Trains a few Fourier coefficients of each update.",
    "gralora": "LoRA with a low-rank update for each block of a matrix.",
    "hira": "Multiplies weights by a low-rank update, for a high rank.",
    "hra": "Reflects weights by a chain of Householder matrices.",
    "ia3": "Scales activations by trained vectors; very few parameters.",
    "ln_tuning": "Trains only the LayerNorm weights.",
    "loha": "Updates are Hadamard products of low-rank matrices.",
    "lokr": "Updates are Kronecker products of small matrices.",
    "oft": "Rotates weights by block-diagonal orthogonal matrices.",
    "p_tuning": "Trains virtual tokens made by a small encoder.",
    "prefix_tuning": "Trains a prefix of keys and values in every layer.",
    "prompt_tuning": "Trains virtual tokens in front of every row.",
    "randlora": "Trains scales of fixed random matrices, for a full rank.",
    "shira": "Trains a small share of the weights directly.",
    "trainable_tokens": "Trains only the embeddings of chosen tokens.",
    "vblora": "Builds LoRA matrices from a shared bank of vectors.",
    "vera": "Trains scales of random matrices that all layers share.",
    "waveft": "Trains a few wavelet coefficients of each update.",
}

CHOICE_HELP: dict[str, dict[str, str]] = {
    "task": {
        "sft": "Learns the answers to prompts and chats.",
        "pretraining": "Learns whole texts.",
        "seq2seq": "Learns targets, with an encoder-decoder such as T5.",
        "dpo": "Prefers chosen over rejected answers, against a reference model.",
        "kto": "Learns from answers that are labeled good or bad.",
        "orpo": "Learns chosen over rejected answers, without a reference model.",
        "reward": "Learns to score answers from chosen and rejected ones.",
        "classification": "Learns the class of a text.",
    },
    "method": {
        choice.value: _METHODS.get(
            choice.value, f"{choice_label(choice)} of PEFT; its options are listed under Method."
        )
        for choice in Method
    },
    "strategy": {
        "single": "One device holds the whole model and trains alone.",
        "ddp": "Every device holds a copy of the model and trains on its own rows.",
        "zero0": "DeepSpeed without sharding: a copy of the model on every device.",
        "zero1": "DeepSpeed shards the optimizer state across devices.",
        "zero2": "DeepSpeed shards optimizer state and gradients across devices.",
        "zero3": "DeepSpeed shards optimizer state, gradients and parameters; least memory, most traffic.",
        "fsdp": "PyTorch shards parameters, gradients and optimizer state across devices.",
    },
    "engine": {
        "auto": "The first engine in LATHE_ENGINES.",
        "local": "A worker starts the run on its own devices.",
        "slurm": "Slurm starts the run as a job, on one or several nodes.",
    },
    "mix_by": {
        "rows": "The weights divide rows.",
        "tokens": "The weights divide tokens after truncation.",
    },
    "mix_until": {
        "first_exhausted": "The other sets continue with new rows in the next epoch.",
        "all_exhausted": "Every row is used; smaller sets repeat.",
    },
    "reasoning_history": {
        "template": "The chat template decides; those of thinking models drop it.",
        "drop": "Earlier answers are rendered without their reasoning.",
        "keep": "Earlier answers are rendered with their reasoning, even if the template drops it.",
    },
    "loss_on": {
        "all": "Every assistant turn of a row carries loss.",
        "last": "Earlier assistant turns count as the prompt.",
        "field": "A message whose loss field is false or 0 carries no loss.",
    },
    "template_check": {
        "strict": "A run with a fault in its rendered rows does not start.",
        "warn": "Faults are shown; the run starts all the same.",
    },
    "quantization": {
        "none": "Frozen weights keep their precision; with QLoRA they take 4 bits.",
        "4bit": "Frozen weights take 1/8 of the memory of fp32.",
        "8bit": "Frozen weights take 1/4 of the memory of fp32.",
    },
    "lora_init": {
        "default": "Starts as the base model: matrix B is zero.",
        "gaussian": "Matrix A starts with Gaussian noise, B with zeros.",
        "orthogonal": "Both matrices start random and orthogonal.",
        "pissa": "Starts from the main singular vectors of the weights.",
        "pissa_niter_4": "PiSSA with a fast approximate decomposition.",
        "pissa_niter_16": "PiSSA with a closer approximate decomposition.",
        "olora": "Starts from a QR decomposition of the weights.",
        "mica": "Starts from the minor singular vectors of the weights.",
        "loftq": "Starts from the error of 4-bit quantization.",
    },
    "offload_optimizer": {
        "none": "The optimizer state stays in device memory.",
        "cpu": "The optimizer state is in host memory; slower steps.",
        "nvme": "The optimizer state is on a fast disk; needs ZeRO-3.",
    },
    "offload_param": {
        "none": "The parameters stay in device memory.",
        "cpu": "The parameters are in host memory; slow.",
        "nvme": "The parameters are on a fast disk; slowest.",
    },
    "precision": {
        "auto": "bf16 where the GPU supports it, else fp16; fp32 on CPU.",
        "bf16": "16 bits with the range of fp32; needs a recent GPU.",
        "fp16": "16 bits with a loss scale; for older GPUs.",
        "fp32": "32 bits: slowest and most memory, no rounding to 16 bits.",
    },
    "weights_precision": {
        "auto": "fp32 for full fine-tuning, else the precision above.",
        "bf16": "Half the memory; loses updates below 1/256 of a weight.",
        "fp16": "Half the memory; narrow range of values.",
        "fp32": "Keeps every update; twice the memory of 16 bits.",
    },
    "gradient_checkpointing": {
        "none": "Keeps all activations: fastest, most memory.",
        "selective": "Recomputes every second layer in the backward pass.",
        "full": "Recomputes every layer: little memory, about a third slower.",
        "offloaded": "Recomputes every layer and keeps the layers' inputs in host memory.",
    },
    "chunked_loss": {
        "auto": "Chunks for vocabularies of 32,000 tokens or more, where the head supports it.",
        "on": "Logits of some hundred tokens at a time; same loss.",
        "off": "Logits of all tokens with loss at once.",
    },
    "probe": {
        "auto": "Tests the largest batch before training, on GPUs only.",
        "on": "Tests the largest batch before training.",
        "off": "Starts to train at once.",
    },
    "on_out_of_memory": {
        "step_down": "Resumes from the last checkpoint with settings that take less memory, same global batch.",
        "ask": "The run fails and proposes settings that take less memory.",
        "fail": "The run fails.",
    },
    "on_divergence": {
        "stop": "The run ends; its result is its best checkpoint with finite weights.",
        "step_back": "Resumes once from the last checkpoint with a tenth of the learning rate, then as stop.",
    },
    "packing": {
        "auto": "Padding-free if the model supports it, else padded rows.",
        "none": "Rows are padded to the longest of their batch.",
        "padding_free": "Rows of a batch are concatenated: same losses, faster.",
        "packed": "Complete rows fill sequences of the maximum length; the micro batch counts sequences.",
    },
    "attention": {
        "auto": "FlashAttention if it is installed and supports the run, else SDPA.",
        "eager": "Plain PyTorch: slowest, runs everywhere.",
        "sdpa": "PyTorch's fused attention.",
        "flash_attention_2": "Needs the package flash-attn and a 16-bit precision on a GPU.",
        "flash_attention_3": "Needs FlashAttention 3 and a Hopper GPU.",
        "flex_attention": "PyTorch's compiled attention.",
    },
    "batch_order": {
        "shuffled": "Rows come in random order.",
        "by_length": "Batches hold rows of similar length, in random order: less padding.",
    },
    "optimizer": {
        "adamw": "Two fp32 moments per weight.",
        "adamw_8bit": "AdamW with moments in 8 bits.",
        "paged_adamw_8bit": "AdamW 8-bit whose state moves to host memory when needed.",
        "paged_adamw_32bit": "AdamW whose state moves to host memory when needed.",
        "adamw_torchao_8bit": "AdamW with moments in 8 bits, by torchao.",
        "adamw_torchao_4bit": "AdamW with moments in 4 bits, by torchao.",
        "adamw_anyprecision": "AdamW in bf16 with Kahan summation.",
        "adafactor": "Factored second moment: almost no state.",
        "lion": "One moment and the sign of the update; use a lower learning rate.",
        "lion_8bit": "Lion with its moment in 8 bits.",
        "muon": "Orthogonalizes the updates of matrices; AdamW for the rest, also for experts that are one tensor.",
        "sgd": "Gradient descent with momentum: one moment per weight.",
    },
    "lr_scheduler": {
        "linear": "Decays in a line to 0.",
        "cosine": "Decays along a cosine to 0.",
        "constant": "Stays the same, without warmup.",
        "constant_with_warmup": "Stays the same after the warmup.",
        "cosine_with_restarts": "Repeats the cosine from the peak to 0.",
        "polynomial": "Decays along a polynomial.",
        "inverse_sqrt": "Decays with the inverse square root of the step.",
        "wsd": "Warmup, a stable phase, then a decay.",
        "cosine_with_min_lr": "Decays along a cosine to the lowest learning rate.",
        "reduce_on_plateau": "Drops when the evaluation loss stops falling.",
    },
    "dpo_loss": {
        "sigmoid": "The original loss of DPO.",
        "hinge": "Stops pushing once the margin is large enough.",
        "ipo": "Bounds the margin against overfitting.",
        "apo_zero": "Raises the chosen and lowers the rejected answers.",
        "apo_down": "Lowers both, the rejected answers more.",
        "sppo_hard": "Pushes each answer to a fixed win rate.",
        "nca_pair": "Keeps the likelihood of chosen answers from falling.",
        "bco_pair": "Classifies chosen against rejected answers.",
    },
    "eval_strategy": {
        "steps": "Evaluates every so many steps.",
        "epoch": "Evaluates at the end of each epoch.",
    },
    "save_strategy": {
        "steps": "Saves a checkpoint every so many steps.",
        "epoch": "Saves a checkpoint at the end of each epoch.",
    },
}
"""By setting and choice."""
