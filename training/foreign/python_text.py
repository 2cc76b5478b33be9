"""Reads Python scripts and notebooks that train with Unsloth, trl or transformers: the arguments of their calls. Executes nothing.

Values are constants, names of constants, and arithmetic of numbers; others are `Unresolved`.
"""

import ast
import re
from collections.abc import Iterator
from typing import Any

from training.foreign.entries import Values
from training.foreign.shell_values import Unresolved
from training.foreign.trainer_keys import COMMAND

LONGEST_TEXT = 200_000
_MOST_NODES = 100_000
_DEEPEST = 20
_LARGEST = 2**40
_IMPORTS = re.compile(r"^[ \t]*(?:from|import)[ \t]+(unsloth|trl|transformers|peft)\b", re.MULTILINE)
_MAGIC = re.compile(r"^[ \t]*%.*$", re.MULTILINE)
_SHELL_LINE = re.compile(r"^[ \t]*!((?:.*\\\n)*.*)", re.MULTILINE)
_TRAINER = re.compile(r"\w*?(SFT|DPO|KTO|ORPO|CPO|Reward|GRPO|PPO|RLOO|OnlineDPO|GKD|BCO|Seq2Seq|)Trainer")
_CONFIG = re.compile(r"(?:SFT|DPO|KTO|ORPO|CPO|Reward|GRPO|PPO|RLOO|OnlineDPO|GKD|BCO)Config")
_ARGUMENTS = re.compile(r"(?:Seq2Seq|Unsloth)?TrainingArguments")
_MODEL = re.compile(
    r"Fast\w*Model|Auto\w*Model\w*|\w+For(?:CausalLM|SequenceClassification|Seq2SeqLM|ConditionalGeneration)"
)
ARGUMENTS = "arguments"
AT_START = "are given when the script is started, so that missing ones have no defaults here. Import that command"
_COMPUTED = "is computed by the script"
_RENAMED = {
    "model_name": "model_name_or_path", "pretrained_model_name_or_path": "model_name_or_path", "revision": "model_revision",
    "r": "lora_r", "target_modules": "lora_target_modules", "modules_to_save": "lora_modules_to_save", "bias": "lora_bias",
    "task_type": "lora_task_type", "use_gradient_checkpointing": "gradient_checkpointing",
}  # fmt: skip
_OF_TRAINER = frozenset({
    "max_seq_length", "packing", "dataset_text_field", "beta", "max_length", "max_prompt_length", "dataset_num_proc", "loss_type",
    "neftune_noise_alpha", "reward_funcs",
})  # fmt: skip
_ABOUT_OBJECTS = frozenset({
    "model", "quantization_config", "device_map", "token", "peft_config", "max_memory", "use_cache", "tokenizer", "loftq_config",
    "layers_to_transform", "temporary_location", "inference_mode", "dataset_kwargs", "config", "low_cpu_mem_usage",
})  # fmt: skip


def is_script(text: str) -> bool:
    """True if a text imports one of the libraries and names a trainer."""
    of_shell = text.startswith("#!") and "python" not in text.partition("\n")[0]
    return not of_shell and bool(_IMPORTS.search(text)) and "Trainer" in text


def of_notebook(values: Values) -> tuple[str, str] | None:
    """The Python text and the shell text of a notebook's cells; None if the values are no notebook."""
    cells = values.get("cells")
    if not isinstance(cells, list):
        return None
    sources = [cell.get("source", "") for cell in cells if isinstance(cell, dict) and cell.get("cell_type") == "code"]
    texts = ["".join(map(str, source)) if isinstance(source, list) else str(source) for source in sources]
    shell = [text.partition("\n")[2] for text in texts if text.startswith(("%%bash", "%%sh"))]
    shell += [line for text in texts for line in _SHELL_LINE.findall(text)]
    return "\n".join(_SHELL_LINE.sub("", text) for text in texts if not text.startswith("%%")), "\n".join(shell)


def read(text: str) -> Values:
    """The arguments of the calls that make model, adapter and trainer, under trl's names.

    Raises:
        ValueError: the text is no valid Python, makes no trainer, or exceeds a limit; with the reason.
    """
    if len(text) > LONGEST_TEXT:
        raise ValueError(f"it has {len(text):,} characters; at most {LONGEST_TEXT:,} are possible")
    try:
        tree = ast.parse(_MAGIC.sub("", text))
    except SyntaxError as error:
        raise ValueError(f"line {error.lineno} is not valid Python: {error.msg}") from None
    except (RecursionError, MemoryError, ValueError):  # ValueError: null bytes
        raise ValueError("it is nested too deeply, or no text") from None
    nodes = [node for node, _ in zip(ast.walk(tree), range(_MOST_NODES), strict=False)]
    return _Script(nodes).values(unsloth=bool(re.search(r"^[ \t]*(?:from|import)[ \t]+unsloth\b", text, re.MULTILINE)))


class _Script:
    def __init__(self, nodes: list[ast.AST]) -> None:
        self._constants: dict[str, ast.expr | None] = {}
        self._calls = sorted((node for node in nodes if isinstance(node, ast.Call)), key=lambda call: call.lineno)
        for node in nodes:
            if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
                name = node.targets[0].id
                self._constants[name] = node.value if name not in self._constants else None  # set twice: not known

    def values(self, *, unsloth: bool) -> Values:
        """The arguments, with the command that says trainer, configuration and library."""
        trainers = [match.group(1) for call in self._calls if (match := _TRAINER.fullmatch(_name(call)))]
        if not trainers:
            raise ValueError("it makes no trainer; give the script that does, or the command that starts it")
        trainer = next(filter(None, trainers), "")
        if trainer == "Seq2Seq" and not self._has("Seq2SeqLM", "ConditionalGeneration"):
            trainer = ""  # which also trains models that continue a text
        config = next((_name(call) for call in self._calls if _CONFIG.fullmatch(_name(call))), "TrainingArguments")
        task = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", trainer) or (
            "classification" if self._has("SequenceClassification") else "Trainer"
        )
        written = any(_makes_arguments(call) for call in self._calls)
        values: Values = {} if written else {ARGUMENTS: Unresolved("", AT_START)}
        values |= {COMMAND: f"{task} with {config}" + (" of Unsloth" if unsloth else "")}
        for call in self._calls:
            for name, value in self._arguments(call):
                values.setdefault(name, value)
        return values

    def _has(self, *kinds: str) -> bool:
        """True if a model of one of these kinds is made."""
        parts = [part for call in self._calls for part in (_name(call), _owner(call))]
        return any(kind in part for kind in kinds for part in parts)

    def _arguments(self, call: ast.Call) -> Iterator[tuple[str, Any]]:
        """The names and values that a call gives."""
        name, owner = _name(call), _owner(call)
        if name == "from_pretrained" and _MODEL.fullmatch(owner):
            if call.args:
                yield "model_name_or_path", self._value(call.args[0])
            yield from self._keywords(call)
        elif name == "LoraConfig" or (name == "get_peft_model" and owner.startswith("Fast")):
            yield "use_peft", True
            yield from self._keywords(call)
        elif name == "BitsAndBytesConfig" or _CONFIG.fullmatch(name) or _ARGUMENTS.fullmatch(name):
            yield from self._keywords(call)
        elif _TRAINER.fullmatch(name):
            yield from ((key, value) for key, value in self._keywords(call) if key in _OF_TRAINER)
        elif name == "load_dataset" and call.args:
            yield "dataset_name", self._value(call.args[0])
        elif name == "train_test_split":
            yield from (("test_split_size", value) for key, value in self._keywords(call) if key == "test_size")
        elif name in ("train_on_responses_only", "DataCollatorForCompletionOnlyLM"):
            yield "completion_only_loss", True

    def _keywords(self, call: ast.Call) -> Iterator[tuple[str, Any]]:
        for keyword in call.keywords:
            if keyword.arg is not None and keyword.arg not in _ABOUT_OBJECTS:
                yield _RENAMED.get(keyword.arg, keyword.arg), self._value(keyword.value)

    def _value(self, node: ast.expr, depth: int = 0) -> Any:
        """The value of an expression, `Unresolved` if only running the script would say it."""
        if depth > _DEEPEST:
            return Unresolved("...", _COMPUTED)
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name) and (constant := self._constants.get(node.id)) is not None:
            return self._value(constant, depth + 1)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "torch":
            return node.attr
        return (
            self._collection(node, depth)
            if isinstance(node, (ast.List, ast.Tuple, ast.Dict))
            else self._computed(node, depth)
        )

    def _collection(self, node: ast.List | ast.Tuple | ast.Dict, depth: int) -> Any:
        if isinstance(node, ast.Dict):
            pairs = zip(node.keys, node.values, strict=True)
            return {str(key.value): self._value(one, depth + 1) for key, one in pairs if isinstance(key, ast.Constant)}
        return [self._value(one, depth + 1) for one in node.elts]

    def _computed(self, node: ast.expr, depth: int) -> Any:
        """The value of a formula of numbers, or of the question whether the GPU has bf16."""
        if isinstance(node, ast.UnaryOp):
            operand = self._value(node.operand, depth + 1)
            if isinstance(node.op, ast.Not) and operand == "auto":
                return None
            if isinstance(node.op, ast.USub) and isinstance(operand, (int, float)):
                return -operand
        if isinstance(node, ast.Call) and _name(node) in ("is_bfloat16_supported", "is_bf16_supported"):
            return "auto"
        if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Mult, ast.Div)):
            left, right = self._value(node.left, depth + 1), self._value(node.right, depth + 1)
            if all(isinstance(one, (int, float)) and 0 < abs(one) < _LARGEST for one in (left, right)):
                return left * right if isinstance(node.op, ast.Mult) else left / right
        try:
            return Unresolved(ast.unparse(node)[:200] if depth == 0 else "...", _COMPUTED)
        except RecursionError:
            return Unresolved("...", _COMPUTED)


def _makes_arguments(call: ast.Call) -> bool:
    """True for the trainer's arguments, if the call gives all of them itself."""
    arguments = _CONFIG.fullmatch(_name(call)) or _ARGUMENTS.fullmatch(_name(call))
    return bool(arguments) and all(keyword.arg is not None for keyword in call.keywords)


def _name(call: ast.Call) -> str:
    """The last name of what is called."""
    function = call.func
    return (
        function.attr if isinstance(function, ast.Attribute) else function.id if isinstance(function, ast.Name) else ""
    )


def _owner(call: ast.Call) -> str:
    """The name before it: `FastLanguageModel` in FastLanguageModel.from_pretrained."""
    owner = call.func.value if isinstance(call.func, ast.Attribute) else None
    return owner.id if isinstance(owner, ast.Name) else owner.attr if isinstance(owner, ast.Attribute) else ""
