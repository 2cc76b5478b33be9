"""Words of shell text: quotes, and what variables, arithmetic and arrays expand to."""

import re
from dataclasses import dataclass, field

from training.foreign.shell_values import Unknowns, Variable, arithmetic, is_marked, part_of

LONGEST_EXPANDED = 1_000_000
"""Characters of all words after variables are replaced: `b=$a$a` doubles."""
DEEPEST = 30
ENDS = frozenset("\n;&|()")
_NAME = re.compile(r"[A-Za-z_]\w*")
_LOOKS_UP = re.compile(r"(?:which|command -v|type -p)\s+([\w.-]+)")
_BRACED = re.compile(r"[A-Za-z_]\w*|[0-9@*]")


class ShellTextError(ValueError):
    """A text that exceeds a limit; the message names it."""


@dataclass
class Word:
    """A word as it is built, and whether it is quoted (a reserved word is not)."""

    parts: list[str] = field(default_factory=list)
    quoted: bool = False

    @property
    def text(self) -> str:
        """The whole word."""
        return "".join(self.parts)


class WordReader:
    """Reads words of a text from a position on."""

    def __init__(self, text: str, variables: dict[str, Variable], unknowns: Unknowns, depth: int = 0) -> None:
        self.text, self.at, self.variables, self.unknowns = text, 0, variables, unknowns
        self._depth, self._expanded = depth, 0

    def word(self, *, split: bool) -> list[Word]:
        """The next word; with `split`, as the shell's fields: several, or none if it expands to nothing."""
        words: list[Word] = []
        while (character := self.peek()) and character not in " \t<>" and character not in ENDS:
            self._piece(words, split=split)
        return words or ([] if split else [Word()])

    def _piece(self, words: list[Word], *, split: bool) -> None:
        """Adds a character, a quoted text or an expansion to the words."""
        character = self.peek()
        if character == '"':
            self._double(words, split=split)
        elif character in ("'", "\\"):
            self._literal(words)
        elif character in "$`":
            pieces = [part for piece in self._expansion() for part in (piece.split() if split else [piece])]
            self._add_all(words, pieces, split=split)
        else:
            self._add_all(words, [self.next()])

    def _add_all(self, words: list[Word], pieces: list[str], *, split: bool = False, quoted: bool = False) -> None:
        """Adds pieces to the last word, and with `split` starts a new one for each piece after the first."""
        for number, piece in enumerate(pieces):
            self._expanded += 1 + len(piece)
            if self._expanded > LONGEST_EXPANDED:
                raise ShellTextError(f"its variables expand to more than {LONGEST_EXPANDED:,} characters")
            if not words or (number and split):
                words.append(Word())
            word = words[-1]
            word.parts.append(piece)
            word.quoted = word.quoted or quoted

    def _literal(self, words: list[Word]) -> None:
        """A character behind a backslash, or a text in single quotes."""
        backslash = self.peek() == "\\"
        start = self.at + 1
        end = start + 1 if backslash else self.text.find("'", start)
        end = len(self.text) if end < 0 else end
        self.at = end if backslash else end + 1
        text = self.text[start:end]
        if not (backslash and text in ("\n", "")):
            self._add_all(words, [text], quoted=True)

    def _double(self, words: list[Word], *, split: bool) -> None:
        """A text in double quotes, in which an array gives several words."""
        self.at += 1
        empty = self.peek() == '"'
        while (character := self.peek()) and character != '"':
            if character == "\\" and self.text[self.at + 1 : self.at + 2] in ('"', "\\", "$", "`", "\n"):
                self._add_all(words, [self.text[self.at + 1].replace("\n", "")], quoted=True)
                self.at += 2
            elif character in "$`":
                self._add_all(words, self._expansion(), split=split, quoted=True)
            else:
                self._add_all(words, [character], quoted=True)
                self.at += 1
        self.at += 1
        if empty:
            self._add_all(words, [""], quoted=True)

    def _expansion(self) -> list[str]:
        """The values of a `$...` or of backquotes: several for an array."""
        start = self.at
        if self.peek() == "`":
            end = self.text.find("`", start + 1)
            self.at = len(self.text) if end < 0 else end + 1
            return [self._printed(start, self.text[start + 1 : end])]
        self.at += 1
        if self.text.startswith("((", self.at):
            return [self._arithmetic(start)]
        if self.peek() == "(":
            self.skip_parentheses()
            return [self._printed(start, self.text[start + 2 : self.at - 1])]
        return self._braces(start) if self.peek() == "{" else self._plain(start)

    def _plain(self, start: int) -> list[str]:
        """The values of `$name`, `$1`, `$@` and the like."""
        if (match := _NAME.match(self.text, self.at)) is not None:
            self.at = match.end()
            return self._value(match.group(), start)
        character = self.next() if self.peek() and self.peek() in "@*0123456789#?!$-" else self.peek()
        if character and character in "@*'":  # the script without arguments; $'...', whose text follows
            return []
        return [self._unresolved(start, "is an argument of the script") if self.at > start + 1 else "$"]

    def _unresolved(self, start: int, reason: str) -> str:
        return self.unknowns.mark(self.text[start : self.at], reason)

    def _value(self, name: str, start: int) -> list[str]:
        if name not in self.variables:
            return [self._unresolved(start, f"needs {name}, which the text does not set")]
        value = self.variables[name]
        return list(value[:1]) if isinstance(value, list) else [value]

    def _braces(self, start: int) -> list[str]:
        """The values of `${...}`."""
        self.at += 1
        length = self.peek() == "#"
        match = _BRACED.match(self.text, self.at + length)
        self.at = match.end() if match else self.at
        operand = self.at
        self._skip_braces()
        operation = self.text[operand : self.at - 1]
        if match is None:
            return [self._unresolved(start, "is expanded in a way that is not read")]
        name = match.group()
        if operation in ("[@]", "[*]") or name in "@*":
            value = self.variables.get(name, [])
            values = value if isinstance(value, list) else [value]
            return [str(len(values))] if length else values
        return self._changed(name, operation, start, length=length)

    def _changed(self, name: str, operation: str, start: int, *, length: bool) -> list[str]:
        """The values of `${name}` with an operation: a default, an alternative, or a part."""
        value = self.variables.get(name)
        bare = operation.removeprefix(":")
        if bare[:1] in ("-", "="):
            return self._value(name, start) if value else [self._nested(bare[1:])]
        if bare[:1] == "+":
            return [self._nested(bare[1:])] if value else []
        if name.isdigit():
            return [self._unresolved(start, "is an argument of the script")]
        if not operation or bare[:1] == "?" or value is None or (isinstance(value, str) and is_marked(value)):
            return [str(len(value))] if length and value is not None else self._value(name, start)
        part = part_of(value, operation) if isinstance(value, str) else None
        return [self._unresolved(start, "is changed in a way that is not read") if part is None else part]

    def _nested(self, text: str) -> str:
        """A text inside `${name:-text}` as a word."""
        if self._depth > DEEPEST:
            raise ShellTextError(f"it has more than {DEEPEST} levels of nesting")
        inner = WordReader(text, self.variables, self.unknowns, self._depth + 1)
        inner._expanded = self._expanded
        words: list[Word] = []
        while inner.peek():
            inner._piece(words, split=False)
        self._expanded = inner._expanded
        return words[0].text if words else ""

    def expanded(self, text: str) -> str:
        """A text without quotes, such as a here-document, with its variables replaced."""
        inner = WordReader(text, self.variables, self.unknowns, self._depth + 1)
        inner._expanded = self._expanded
        words = [Word()]
        while character := inner.peek():
            inner._add_all(words, inner._expansion() if character in "$`" else [inner.next()])
        self._expanded = inner._expanded
        return words[0].text

    def _skip_braces(self) -> None:
        """Skips to behind the `}` that closes the current braces."""
        depth = 1
        while depth and (character := self.next()):
            depth += {"{": 1, "}": -1}.get(character, 0)

    def skip_parentheses(self) -> None:
        """Skips to behind the `)` that closes the parentheses at the position."""
        depth = 0
        while character := self.next():
            if character in "'\"":
                end = self.text.find(character, self.at)
                self.at = len(self.text) if end < 0 else end + 1
            depth += {"(": 1, ")": -1}.get(character, 0)
            if not depth:
                return

    def _printed(self, start: int, command: str) -> str:
        """What a command prints, of those that say so themselves: `expr FORMULA`, `which PROGRAM`."""
        name, _, rest = command.strip().partition(" ")
        if name == "expr" and (value := arithmetic(rest.replace("\\*", "*"), self.variables)) is not None:
            return value
        program = _LOOKS_UP.fullmatch(command.strip())
        return program.group(1) if program else self._unresolved(start, "is what a command prints")

    def _arithmetic(self, start: int) -> str:
        end = self.text.find("))", self.at)
        formula = self.text[self.at + 2 : end] if end >= 0 else ""
        self.at = len(self.text) if end < 0 else end + 2
        while self.peek() == ")" and formula.count("(") > formula.count(")"):
            formula += self.next()
        value = arithmetic(formula, self.variables)
        return self._unresolved(start, "is computed from what the text does not set") if value is None else value

    def peek(self) -> str:
        """The character at the position; empty at the end."""
        return self.text[self.at : self.at + 1]

    def next(self) -> str:
        """The character at the position, which it passes."""
        self.at += 1
        return self.text[self.at - 1 : self.at]
