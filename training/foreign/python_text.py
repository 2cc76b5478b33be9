"""Reads Python scripts and notebooks that train with Unsloth, trl or transformers: the arguments of their calls. Executes nothing.

Values are constants, names of constants, arguments of the script, and arithmetic of numbers; others are `Unresolved`. Calls
behind a condition that does not hold with these arguments are left out.
"""

import ast
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

from training.foreign.entries import Values, tables
from training.foreign.shell_values import Unresolved
from training.foreign.trainer_keys import COMMAND

LONGEST_TEXT = 200_000
_MOST_NODES = 100_000
_DEEPEST = 20
_LARGEST = 2**40
_IMPORTS = re.compile(r"^[ \t]*(?:from|import)[ \t]+(unsloth|trl|transformers|peft)\b", re.MULTILINE)
_MAGIC = re.compile(r"^([ \t]*)%(?:.*\\\n)*.*$", re.MULTILINE)
_TRAINER = re.compile(r"\w*?(SFT|DPO|KTO|ORPO|CPO|Reward|GRPO|PPO|RLOO|OnlineDPO|GKD|BCO|Seq2Seq|)Trainer")
_CONFIG = re.compile(r"(?:SFT|DPO|KTO|ORPO|CPO|Reward|GRPO|PPO|RLOO|OnlineDPO|GKD|BCO)Config")
_ARGUMENTS = re.compile(r"(?:Seq2Seq|Unsloth)?TrainingArguments")
_MODEL = re.compile(
    r"Fast\w*Model|Auto\w*Model\w*|\w+For(?:CausalLM|SequenceClassification|Seq2SeqLM|ConditionalGeneration)"
)
ARGUMENTS = "arguments"
AT_START = "are given when the script is started, so that missing ones have no defaults here. Import that command"
_COMPUTED = "is computed by the script"
_TABLES = tables("python_text")


def is_script(text: str) -> bool:
    """True if a text imports one of the libraries and names a trainer."""
    of_shell = text.startswith("#!") and "python" not in text.partition("\n")[0]
    return not of_shell and bool(_IMPORTS.search(text)) and "Trainer" in text


def read(text: str) -> Values:
    """The arguments of the calls that make model, adapter and trainer, under trl's names. Raises ValueError if the text is no
    valid Python, makes no trainer, or exceeds a limit; with the reason."""
    return _read(text, {})[0]


def _read(text: str, given: Values) -> tuple[Values, Values]:
    """The arguments of the calls with those of the start, and the defaults of the script's own arguments."""
    if len(text) > LONGEST_TEXT:
        raise ValueError(f"it has {len(text):,} characters; at most {LONGEST_TEXT:,} are possible")
    try:
        tree = ast.parse(_MAGIC.sub(r"\1pass", text))
    except SyntaxError as error:
        raise ValueError(f"line {error.lineno} is not valid Python: {error.msg}") from None
    except (RecursionError, MemoryError, ValueError):  # ValueError: null bytes
        raise ValueError("it is nested too deeply, or no text") from None
    nodes = [node for node, _ in zip(ast.walk(tree), range(_MOST_NODES), strict=False)]
    script = _Script(nodes, given)
    unsloth = re.search(r"^[ \t]*(?:from|import)[ \t]+unsloth\b", text, re.MULTILINE)
    return script.values(unsloth=bool(unsloth)), script.defaults


def of_command(text: str | None, flags: Values, names: Collection[str]) -> Values | None:
    """What a script that is here makes of the flags of its command: the arguments of its calls, the flags, and its parser's
    defaults with one of `names`. None if the text is no script, or makes no trainer."""
    if text is None or not is_script(text):
        return None
    try:
        values, defaults = _read(text, flags)
    except ValueError:
        return None
    made = {name: value for name, value in values.items() if name != ARGUMENTS and not isinstance(value, Unresolved)}
    own = {name: value for name, value in defaults.items() if name in names and not isinstance(value, Unresolved)}
    if "train_file" not in flags:  # a data set of the hub has its own validation rows
        own.pop("validation_split_percentage", None)
    return own | flags | made


class _Script:
    def __init__(self, nodes: list[ast.AST], given: Values) -> None:
        self._constants: dict[str, ast.expr | None] = {}
        self._given: Values = {}
        self._evaluated = 0
        self._holders = _argument_holders(nodes)
        self._names = [node.id for node in nodes if isinstance(node, ast.Name)]
        for node in nodes:
            if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
                name = node.targets[0].id
                self._constants[name] = node.value if name not in self._constants else None  # set twice: not known
        defaults = _argument_defaults(nodes, self._value)
        self.defaults = {name: value for name, value in defaults.items() if value is not None}
        self._given = self.defaults | given
        left_out = {id(node) for one in nodes if isinstance(one, ast.If) for node in self._not_run(one)}
        made = (node for node in nodes if isinstance(node, ast.Call) and id(node) not in left_out)
        self._calls = sorted(made, key=lambda call: call.lineno)

    def _not_run(self, branch: ast.If) -> Iterator[ast.AST]:
        """The nodes of a branch that is not taken with the script's arguments."""
        holds = self._value(branch.test)
        if isinstance(holds, bool):
            for line in branch.orelse if holds else branch.body:
                yield from ast.walk(line)

    def values(self, *, unsloth: bool) -> Values:
        """The arguments, with the command that says trainer, configuration and library."""
        trainers = [match.group(1) for call in self._calls if (match := _TRAINER.fullmatch(_name(call)))]
        if not trainers:
            raise ValueError("it makes no trainer; give the script that does, or the command that starts it")
        trainer = next(filter(None, trainers), "")
        if trainer == "Seq2Seq" and not self._has("Seq2SeqLM", "ConditionalGeneration"):
            trainer = ""  # which also trains models that continue a text
        config = next(filter(_CONFIG.fullmatch, [*map(_name, self._calls), *self._names]), "TrainingArguments")
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
            yield from ((key, value) for key, value in self._keywords(call) if key in _TABLES["of_trainer"])
        elif name == "load_dataset" and call.args:
            yield "dataset_name", self._value(call.args[0])
        elif name == "train_test_split":
            yield from (("test_split_size", value) for key, value in self._keywords(call) if key == "test_size")
        elif name in ("train_on_responses_only", "DataCollatorForCompletionOnlyLM"):
            yield "completion_only_loss", True

    def _keywords(self, call: ast.Call) -> Iterator[tuple[str, Any]]:
        for keyword in call.keywords:
            if keyword.arg is not None and keyword.arg not in _TABLES["about_objects"]:
                yield _TABLES["renamed"].get(keyword.arg, keyword.arg), self._value(keyword.value)

    def _value(self, node: ast.expr, depth: int = 0) -> Any:
        """The value of an expression, `Unresolved` if only running the script would say it."""
        self._evaluated += 1
        if depth > _DEEPEST or self._evaluated > _MOST_NODES:  # `b = a * a` doubles
            return Unresolved("...", _COMPUTED)
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name) and (constant := self._constants.get(node.id)) is not None:
            return self._value(constant, depth + 1)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.value.id == "torch":
                return node.attr
            if node.value.id in self._holders and node.attr in self._given:
                return self._given[node.attr]
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
        """The value of a formula of numbers, a comparison, or the question whether the GPU has bf16."""
        if isinstance(node, ast.Call) and _name(node) in ("is_bfloat16_supported", "is_bf16_supported"):
            return "auto"
        operands = ast.iter_child_nodes(node) if isinstance(node, (ast.UnaryOp, ast.BinOp, ast.Compare)) else ()
        parts = [self._value(one, depth + 1) for one in operands if isinstance(one, ast.expr)]
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not) and parts == ["auto"]:
            return None
        value = None if any(isinstance(one, Unresolved) for one in parts) else _result(node, parts)
        if value is not None:
            return value
        try:
            return Unresolved(ast.unparse(node)[:200] if depth == 0 else "...", _COMPUTED)
        except RecursionError:
            return Unresolved("...", _COMPUTED)


def _result(node: ast.expr, parts: list[Any]) -> Any:
    """What an operator makes of known values; None if it is not read."""
    numbers = all(isinstance(one, (int, float)) and abs(one) < _LARGEST for one in parts)
    match node:
        case ast.Compare(ops=[ast.Eq() | ast.NotEq() as operator]):
            return (parts[0] == parts[1]) == isinstance(operator, ast.Eq)
        case ast.UnaryOp(op=ast.Not()) if isinstance(parts[0], bool):
            return not parts[0]
        case ast.UnaryOp(op=ast.USub()) if numbers:
            return -parts[0]
        case ast.BinOp(op=ast.Mult() | ast.Div() as operator) if numbers and all(parts):
            return parts[0] * parts[1] if isinstance(operator, ast.Mult) else parts[0] / parts[1]
    return None


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


_USUAL_NAMES = ("args", "opt", "cfg")
_Value = Callable[[ast.expr], Any]


def _argument_defaults(nodes: Iterable[ast.AST], value: _Value) -> Values:
    """The default of each argument; None where the start must give it. `value` gives that of an expression."""
    arguments: Values = {}
    for node in nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument":
            arguments |= _of_argparse(node, value)
        elif isinstance(node, ast.ClassDef) and any("dataclass" in ast.unparse(one) for one in node.decorator_list):
            arguments |= _of_dataclass(node, value)
    return arguments


def _argument_holders(nodes: Iterable[ast.AST]) -> set[str]:
    names = set(_USUAL_NAMES)
    for node in nodes:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            function = node.value.func
            if isinstance(function, ast.Attribute) and function.attr.startswith("parse"):
                names |= {one.id for target in node.targets for one in ast.walk(target) if isinstance(one, ast.Name)}
    return names


def _of_argparse(call: ast.Call, value: _Value) -> Values:
    flags = [str(one.value) for one in call.args if isinstance(one, ast.Constant)]
    keywords = {keyword.arg: keyword.value for keyword in call.keywords}
    name = next((flag for flag in flags if flag.startswith("--")), flags[0] if flags else "")
    name = str(value(keywords["dest"])) if "dest" in keywords else name.lstrip("-").replace("-", "_")
    action = value(keywords["action"]) if "action" in keywords else ""
    default = {"store_true": False, "store_false": True}.get(str(action))
    return {name: value(keywords["default"]) if "default" in keywords else default} if name else {}


def _of_dataclass(node: ast.ClassDef, value: _Value) -> Values:
    fields: Values = {}
    for line in node.body:
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
            fields[line.target.id] = None if line.value is None else _of_field(line.value, value)
    return fields


def _of_field(default: ast.expr, value: _Value) -> Any:
    """The default that `field(default=...)` or `field(default_factory=lambda: ...)` gives, or the expression itself."""
    if not isinstance(default, ast.Call):
        return value(default)
    keywords = {keyword.arg: keyword.value for keyword in default.keywords}
    factory = keywords.get("default_factory")
    if isinstance(factory, ast.Lambda):
        return value(factory.body)
    return value(keywords["default"]) if "default" in keywords else None
