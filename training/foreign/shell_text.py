"""Reads shell text as a shell does, without executing it: assignments, quotes, continuation, conditions, loops.

What a command prints, arguments of the script and the environment are not known: a word that needs them is `Unresolved`.
A loop's body is read once, and of variables that a condition decides none is chosen.
"""

import re
from dataclasses import dataclass, field

from training.foreign.shell_values import Unknowns, Variable, is_marked, join, slurm_variables, without_marks
from training.foreign.shell_words import ENDS, ShellTextError, Word, WordReader

LONGEST_TEXT = 200_000
LAUNCH_VARIABLES = (
    "CUDA_VISIBLE_DEVICES",
    "NPROC_PER_NODE",
    "NNODES",
    "FORCE_TORCHRUN",
    "ASCEND_RT_VISIBLE_DEVICES",
    "WORLD_SIZE",
)
"""Variables that say on how many processes a command trains."""
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\[[^\]\s]*\])?(\+?=)")
_DECLARES = frozenset(("export", "declare", "local", "readonly", "typeset"))
_OPENS = {"if": "branch", "case": "case", "while": "while", "until": "while", "for": "for", "select": "for"}
_CLOSES = frozenset(("fi", "esac", "done", "}"))
_CONTINUES = frozenset(("then", "else", "elif", "do", "{", "!", "time", "function"))
_BEFORE = _CONTINUES | _CLOSES | {"if"}
"""Words that a command or an assignment follows."""
_PATTERN = re.compile(r"(?:(?<=;;)|(?<=\bin\n))\s*(?!esac\b)[^)\n]*\)")
_HEREDOC = re.compile(r"<<(?!<)(-?)[ \t]*(['\"]?)([\w.-]+)\2")


@dataclass(frozen=True)
class Command:
    """The words of a command, and what LAUNCH_VARIABLES are at that point."""

    words: list[str]
    variables: dict[str, str]


@dataclass
class Script:
    """The commands in their order, and the files that here-documents write, by name."""

    commands: list[Command] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)


def read(text: str) -> Script:
    """The commands of a shell text. Raises ShellTextError if it is longer than LONGEST_TEXT, expands to more than
    LONGEST_EXPANDED, or is nested deeper than DEEPEST."""
    if len(text) > LONGEST_TEXT:
        raise ShellTextError(f"it has {len(text):,} characters; at most {LONGEST_TEXT:,} are possible")
    reader = _Reader(without_marks(text).replace("\r\n", "\n"), slurm_variables(text))
    reader.read_all()
    return reader.script


class _Reader(WordReader):
    def __init__(self, text: str, variables: dict[str, Variable]) -> None:
        super().__init__(text, variables, Unknowns())
        self._blocks: list[str] = []
        self._heredocs: list[tuple[str, bool]] = []  # the end of each; True: it is quoted, and nothing is replaced
        self.script = Script()

    def read_all(self) -> None:
        while self.at < len(self.text):
            # A pattern of `case`, which is behind `in` or `;;`.
            if self._blocks[-1:] == ["case"] and (match := _PATTERN.match(self.text, self.at)):
                self.at = match.end()
                continue
            words, assigned, target = self._statement()
            bodies = self._heredoc_bodies()
            if bodies and target:
                self.script.files[target] = bodies[-1]
            self._run(words, assigned)

    def _statement(self) -> tuple[list[Word], dict[str, Variable], str]:
        """The words up to the end of a command, the assignments before them, and the file its output goes to."""
        words: list[Word] = []
        assigned: dict[str, Variable] = {}
        target = ""
        while self.at < len(self.text):
            self._skip_blanks()
            character = self.peek()
            if character in ENDS or not character:
                self.at += 1
                break
            if character in "<>" or (character.isdigit() and re.match(r"\d[<>]", self.text[self.at : self.at + 2])):
                target = self._redirection() or target
                continue
            sets = not words or words[0].text in _DECLARES or all(word.text in _BEFORE for word in words)
            if sets and (match := _ASSIGNMENT.match(self.text, self.at)):
                self._assign(match, assigned)
                continue
            words += self.word(split=True)
        return words, assigned, target

    def _run(self, words: list[Word], assigned: dict[str, Variable]) -> None:
        """What a statement does: opens or closes a block, sets variables, or is a command."""
        while words and not words[0].quoted:
            first = words[0].text
            if first in _CLOSES:
                if self._blocks:
                    self._blocks.pop()
                words = words[1:]
            elif first in _OPENS:
                self._open(first, words)
                words = words[1:] if first in ("if", "while", "until") else []
            elif first in _CONTINUES:
                words = words[1:]
            else:
                break
        if not words or words[0].text in _DECLARES:
            for name, variable in assigned.items():
                self._set(name, variable)
            return
        if words[0].text == "unset":
            for word in words[1:]:
                self.variables.pop(word.text, None)
            return
        known = {name: assigned.get(name, self.variables.get(name)) for name in LAUNCH_VARIABLES}
        variables = {name: self.unknowns.value(one) for name, one in known.items() if isinstance(one, str)}
        self.script.commands.append(Command([self.unknowns.value(word.text) for word in words], variables))

    def _open(self, first: str, words: list[Word]) -> None:
        self._blocks.append(_OPENS[first])
        if first in ("for", "select") and len(words) > 1:
            name = words[1].text
            self.variables[name] = self.unknowns.mark(f"${name}", "differs in each round of a loop")

    def _set(self, name: str, variable: Variable) -> None:
        """An assignment, as far as it surely happens."""
        before = self.variables.get(name)
        if before is not None and "while" in self._blocks:
            return  # such loops read the script's arguments
        if before is not None and {"branch", "case"} & {*self._blocks} and before != variable:
            added = isinstance(before, str) and isinstance(variable, str) and variable.startswith(before)
            mark = self.unknowns.mark(f"${name}", "depends on a condition of the script")
            variable = f"{before} {mark}" if added else mark
        self.variables[name] = variable

    def _assign(self, match: "re.Match[str]", assigned: dict[str, Variable]) -> None:
        name, index, operator = match.groups()
        self.at = match.end()
        before = assigned.get(name, self.variables.get(name, ""))
        if self.peek() == "(":
            value: Variable = self._array()
            assigned[name] = [*before, *value] if operator == "+=" and isinstance(before, list) else value
            return
        word = self.word(split=False)[0]
        if index:
            assigned[name] = self.unknowns.mark(f"${name}", "is an array with assigned elements")
        elif operator == "+=":
            assigned[name] = join(before, word.text)
        else:
            assigned[name] = word.text

    def _array(self) -> list[str]:
        self.at += 1
        values: list[Word] = []
        while True:
            self._skip_blanks()
            if self.peek() in ("\n", ";"):
                self.at += 1
            elif self.peek() in (")", ""):
                self.at += 1
                return [word.text for word in values]
            elif self.peek() in ENDS or self.peek() in "<>":
                self.at += 1
            else:
                values += self.word(split=True)

    def _redirection(self) -> str:
        """Skips a redirection; the name of the file that receives the output."""
        if (match := _HEREDOC.match(self.text, self.at)) is not None:
            self._heredocs.append((match.group(3), bool(match.group(2))))
            self.at = match.end()
            return ""
        match = re.compile(r"\d?[<>]{1,3}[&|]?").match(self.text, self.at)
        self.at = match.end() if match else self.at + 1
        into = match is not None and match.group().strip("12|") in (">", ">>")
        self._skip_blanks()
        if self.peek() in ENDS or not self.peek():
            if self.peek() == "(":  # <( ... )
                self.skip_parentheses()
            return ""
        name = self.word(split=False)[0]
        return name.text if into and not is_marked(name.text) else ""

    def _heredoc_bodies(self) -> list[str]:
        """The texts of here-documents, which start in the line below their command."""
        if not self._heredocs or self.text[self.at - 1 : self.at] != "\n":
            return []
        bodies = []
        for end, quoted in self._heredocs:
            match = re.compile(rf"^[ \t]*{re.escape(end)}[ \t]*$", re.MULTILINE).search(self.text, self.at)
            stop = match.start() if match else len(self.text)
            body = self.text[self.at : stop]
            self.at = match.end() if match else stop
            bodies.append(body if quoted else self.unknowns.value(self.expanded(body)))
        self._heredocs = []
        return bodies

    def _skip_blanks(self) -> None:
        """Skips white space, continued lines and a comment."""
        while character := self.peek():
            if character in " \t":
                self.at += 1
            elif character == "\\" and self.text[self.at + 1 : self.at + 2] in ("\n", ""):
                self.at += 2
            elif character == "#":
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            else:
                return
