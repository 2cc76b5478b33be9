"""Separates a log line's text from what launchers, schedulers, log collectors and loggers put before it."""

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from worker.diagnosis.parsing.lines import NOTICE_LEVELS

# What launchers put before each line: torch's own hook, torchrun --tee, Lightning, mpirun (SageMaker's too).
_RANK = re.compile(
    r"\s*(?:\[(rank|default)(\d{1,5})\]:|\[rank: ?(\d{1,5})\]|\[\d+,(?:mpirank:)?(\d{1,5})(?:,[\w-]+)?\]<std(?:err|out)>:) ?"
)
_NAMED = re.compile(r"\[(?:PG [^\]]*)?(?:[Rr]ank|RANK)[: ]?(\d{1,5})\]")
_ALWAYS = re.compile(
    r"\(\w[\w.:-]*(?: [\w=]+){0,2} pid=\d+(?:, ip=[\w.:]+)?\) ?(?:\[repeated \d+x[^\]]*\] ?)?"  # Ray, vLLM
    r"|E {3,}(?=(?:\w+\.)*\w*(?:Error|Exception)(?:: |$))"  # pytest, before an exception
    r"|(?:[A-Z]+ )?\d{4}-\d\d-\d\dT[\d:.]+Z \[resource\.[^\]]+\] "  # Google's log viewer: its level is not the line's
)
_SRUN = re.compile(r"\s{0,4}(\d{1,4}):(?: |$)")
_LAUNCHER = re.compile(r"torch[./]distributed[./](?:elastic|run\b|launch)|deepspeed[./]launcher")
"""Output of a launcher that starts the ranks of a node itself: the tasks of srun are then nodes."""


def _prefix(pattern: str, flags: int = 0) -> re.Pattern[str]:
    """A prefix; a line that has nothing else may have lost the space at its end."""
    return re.compile(f"{pattern[:-1]}(?: |$)" if pattern.endswith(" ") else pattern, flags)


_DISTINCT = (
    _prefix(
        r"\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[\d.,:+Z-]*\]?(?:[ \t]|$)(?:std(?:out|err) [FP](?: |$))?"
    ),  # Kubernetes, docker logs -t
    _prefix(r"[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \S+ [^\s:\[]+(?:\[\d+\])?: "),  # journald, syslog
    _prefix(r"\[pod/[^\]]+\] "),  # kubectl logs --prefix
    _prefix(r"(?:\[(?:STDOUT|STDERR)\]|(?:stdout|stderr):) ?", re.I),  # programs that show another's output
)
"""Prefixes that count only if nearly every line has them, be it one line."""
_PROGRAMS = (
    r"(?:srun|sbatch|salloc|scancel|slurmstepd|qsub|bsub|mpirun|ssh|pdsh|sh|bash|zsh|git|pip|docker|kubectl|nvcc|ninja|wandb"
    r"|error|warning|fatal|info)"
)
"""Names that programs give themselves at the start of a message: no hosts."""
_EVERY_LINE = (
    *_DISTINCT,
    _prefix(r"[A-Za-z0-9][\w.-]*(?:\[\w+\])? +\| "),  # docker compose, foreman
    _prefix(rf"(?!{_PROGRAMS}: )[a-z][\w.-]{{0,63}}: "),  # pdsh and DeepSpeed's launcher: the host
    _prefix(r" *\| "),  # programs that indent another's output
    _prefix(r"\[\d+\] "),  # line counters
    _prefix(r"> ?"),  # quoted in an e-mail or an issue
    _prefix(r"    "),
)
"""Prefixes that other text may begin with too: they need several lines."""
_SEVERAL = 3
_SAMPLE = 50  # lines that a prefix is tried on before all are

_LEVEL = r"(?P<level>DEBUG|INFO|WARN(?:ING)?|ERROR|CRITICAL|FATAL)"
_TIME = (
    r"\[?(?:\d{4}[-/])?\d\d[-/]\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?\]?"
    r"|\[?\d\d:\d\d:\d\d(?:[.,]\d+)?\]?"
)
_WHERE = r"\[[\w./-]+:\d+(?::[\w.<>]+)?\]"
_LOGGER = tuple(
    _prefix(pattern)
    for pattern in (
        rf"(?:{_TIME})(?: - [\w./:-]+)? - {_LEVEL} - ",  # the format of most examples of logging
        rf"(?:{_TIME}) *\| *{_LEVEL} *\| *[\w.<>]+:[\w.<>]+:\d+ - ",  # loguru
        rf"{_LEVEL} *\| *(?:{_TIME}) *\| *[\w.<>]+:[\w.<>]+:\d+ - ",  # autotrain
        rf"{_LEVEL} (?:{_TIME}) (?:{_WHERE}) ?",  # vLLM
        rf"(?:{_TIME}) \[{_LEVEL}\] (?:{_WHERE}) ?(?:\[PID:\d+\] )?",  # DeepSpeed
        rf"\[{_LEVEL}\|[\w.]+:\d+\](?: (?:{_TIME}))? >> ",  # transformers
        rf"(?:{_TIME}) \[{_LEVEL}\] ",
        rf"(?:{_TIME})\[[\w./-]+\]\[{_LEVEL}\] - ",  # Hydra
        rf"{_LEVEL}:[\w.]+:",  # logging.basicConfig
        rf"\[{_LEVEL}\] ?",
    )
)
"""What a logger puts before a message, or before each of its lines; with the message's level."""
_LEVELED = re.compile(r"DEBUG|INFO|WARN|ERROR|CRITICAL|FATAL")
_LONGEST = 200  # characters of a prefix
_OF_TRACEBACK = re.compile(rf"(?:{_RANK.pattern})?\s*(?:Traceback \(most recent|File \"[^\"]+\", line \d+)")
_OF_EXCEPTION = re.compile(rf"{_OF_TRACEBACK.pattern}|(?:{_RANK.pattern})?(?:\w+\.)*\w*(?:Error|Exception)(?:: |$)")


@dataclass(frozen=True)
class Read:
    """One or more lines without their prefixes, parts of which a terminal broke at its width.

    `first` is the index of the first of them; `node` and `rank` printed them, if they are marked; `level` is the logger's.
    """

    first: int
    text: str
    node: int | None = None
    rank: int | None = None
    level: str = ""


def without(lines: Sequence[str]) -> list[Read]:
    """The lines without prefixes, those joined that a terminal broke, before or after a program added its prefix."""
    read = [Read(index, text) for index, text in enumerate(lines)]
    before: list[Read] = []
    while read != before:
        before = read
        read = _without_loggers(
            [replace(read[index], text=text) for index, text in joined([line.text for line in read])]
        )
        read = [_without_mark(line) for line in _without_collectors(read)]
    return [_named(line) for line in read]


def _without_collectors(read: list[Read]) -> list[Read]:
    """The lines without what nearly all of them begin with."""
    for prefix in _EVERY_LINE:
        if _mostly(prefix, [line.text for line in read], 1 if prefix in _DISTINCT else _SEVERAL):
            read = [_cut(line, prefix) for line in read]
    texts = [line.text for line in read]
    if not _mostly(_SRUN, texts) or any(line.rank is not None for line in read):
        return read
    of_nodes = any(_LAUNCHER.search(text) for text in texts)
    return [_numbered(line, of_nodes=of_nodes) for line in read]


def _cut(line: Read, prefix: re.Pattern[str]) -> Read:
    match = prefix.match(line.text)
    return replace(line, text=line.text[match.end() :]) if match else line


def _mostly(prefix: re.Pattern[str], texts: Sequence[str], least: int = _SEVERAL) -> bool:
    """True if nearly every line with text, of at least so many, begins with the prefix."""
    written = [text for text in texts if text.strip()]
    return (
        len(written) >= least
        and _is_mostly(prefix, written[:: len(written) // _SAMPLE + 1])
        and _is_mostly(prefix, written)
    )


def _is_mostly(prefix: re.Pattern[str], texts: Sequence[str]) -> bool:
    return sum(bool(prefix.match(text)) for text in texts) > 0.8 * len(texts)


def _numbered(line: Read, *, of_nodes: bool) -> Read:
    """A line that begins with the number of a task of srun: a node if a launcher runs in each task, otherwise a rank."""
    label = _SRUN.match(line.text)
    if label is None:
        return line
    number, text = int(label[1]), line.text[label.end() :]
    return replace(line, node=number, text=text) if of_nodes else replace(line, rank=number, text=text)


def _without_mark(line: Read) -> Read:
    """The line without one mark of a launcher."""
    mark = _RANK.match(line.text)
    if mark is None:
        return _cut(line, _ALWAYS)
    kind, *numbers = mark.groups()
    # torchrun --tee gives the local rank; torch's own mark, further in, gives the global rank.
    rank = int(next(number for number in numbers if number)) if line.rank is None or kind == "rank" else line.rank
    return replace(line, rank=rank, text=line.text[mark.end() :])


def _named(line: Read) -> Read:
    """The line with the rank that its text names, if no prefix marks one."""
    if line.rank is None and (named := _NAMED.search(line.text)):
        return replace(line, rank=int(named[1]))
    return line


def _without_loggers(read: list[Read]) -> list[Read]:
    """The lines without the prefixes of a logger, if it printed them before every line of a traceback or of the log."""
    leveled = [bool(_LEVELED.search(line.text[:_LONGEST])) for line in read]
    for prefix in _LOGGER:
        found = [prefix.match(line.text) if may else None for line, may in zip(read, leveled, strict=True)]
        if not any(found):
            continue
        levels = Counter(match["level"] for match in found if match)
        every = _mostly(prefix, [line.text for line in read], 1)
        same = every and _is_collectors(levels, raised=bool(_in_runs(read, found, _OF_TRACEBACK)))
        for index in range(len(read)) if every else _in_runs(read, found, _OF_EXCEPTION):
            if match := found[index]:
                level = read[index].level if same else match["level"]
                read[index] = replace(read[index], text=read[index].text[match.end() :], level=level)
                leveled[index] = bool(_LEVELED.search(read[index].text[:_LONGEST]))
    return read


def _is_collectors(levels: Counter[str], *, raised: bool) -> bool:
    """True if a collector gave every line the same level, which then says nothing about the line."""
    return len(levels) == 1 and levels.total() >= _SEVERAL and (raised or not NOTICE_LEVELS & levels.keys())


def _in_runs(read: list[Read], found: Sequence[re.Match[str] | None], part: re.Pattern[str]) -> list[int]:
    """The lines in runs of the same prefix of which one matches behind it."""
    runs: list[list[int]] = []
    for index, match in enumerate(found):
        if match is None:
            continue
        if runs and runs[-1][-1] == index - 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    return [
        index
        for run in runs
        if any((match := found[one]) and part.match(read[one].text[match.end() :]) for one in run)
        for index in run
    ]


_NARROWEST = 60  # characters
_USUAL = (80, 100, 120, 128, 132, 140, 150, 160, 180, 200, 240)
_STARTS = re.compile(
    r"\s*$|\s+(?:File \"|\^+|~+\^|\.\.\.|raise |return |self\.)|Traceback \(|\[?(?:rank|default)\d+\]|\[rank: ?\d"
    r"|\[\d+,[\w:,-]+\]<std"
    r"|\[?\d{4}-\d\d-\d\d|\[?\d\d:\d\d:\d\d|\(\w[\w.:]* pid=|\[?[EWIF]\d{3,4} |[│╭╰|]|={5}|-{5}|\*{5}"
    r"|[A-Za-z_.]+(?:Error|Exception): "
    r"|(?:DEBUG|INFO|WARNING|ERROR)\b|wandb:|> |[\w.-]+ +\| |During handling|The above exception|\S+@\S+[:$#]|\$ |#"
)
"""What begins a line of its own: it continues no other."""
_ENDS = re.compile(r".*[│╮╯]\s*$|.*\d%\||\s*[-=*#^~_ ]+$|(\S)\1{30}|.*[-=*#^~_]{30}$")
"""A box, a progress bar or a rule: it is as wide as the terminal by itself."""
_DIGITS = re.compile(r"\d+")
_MOST_COMPARED = 100  # lines of one length
_FRAME = re.compile(r'\s*File "[^"]+", line \d+, in [\w<>.]+$')


def joined(texts: Sequence[str]) -> list[tuple[int, str]]:
    """The lines with the parts of broken ones joined: the index of the first part, and the text."""
    rows = _rows(texts)
    width = _width([text for index, text in enumerate(texts) if index not in rows])
    found: list[tuple[int, str]] = []
    broken = False
    for index, text in enumerate(texts):
        if broken and not _starts(text, found[-1][1]):
            found[-1] = (found[-1][0], found[-1][1] + text)
        else:
            found.append((index, text))
        broken = len(text) == width > 0 and index not in rows and not _ENDS.match(text)
    return found


def _rows(texts: Sequence[str]) -> set[int]:
    """The lines that differ from the line before or after only in digits: rows of a table of metrics, which nothing broke."""
    kinds = [_DIGITS.sub("", text) for text in texts]
    pairs = {index for index in range(1, len(texts)) if kinds[index] == kinds[index - 1]}
    return pairs | {index - 1 for index in pairs}


def _starts(text: str, before: str) -> bool:
    return bool(_STARTS.match(text)) or (text.startswith("  ") and bool(_FRAME.match(before)))


def _width(texts: Sequence[str]) -> int:
    """The terminal's width in characters; 0 if it broke no line."""
    by_length: dict[int, list[str]] = defaultdict(list)
    for text in texts:
        if len(text) >= _NARROWEST and not _ENDS.match(text):
            by_length[len(text)].append(text)
    longer = 0
    for length in sorted(by_length, reverse=True):
        alike = by_length[length]
        different = len({_DIGITS.sub("", text) for text in alike[:_MOST_COMPARED]})
        if len(alike) > longer and (different > 2 or length in _USUAL):
            return length
        longer += len(alike)
    return 0
