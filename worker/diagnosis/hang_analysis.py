"""Analyzes a collective that timed out, or ranks that were killed: for which rank the others waited."""

import re
from dataclasses import dataclass, replace

from worker.diagnosis.cause import Detail, Known
from worker.diagnosis.parsing.lines import Line
from worker.diagnosis.timeline import Log

_WAITED = re.compile(
    r"[Rr]ank (\d{1,5})\].*?Watchdog caught collective operation timeout: .*?SeqNum=(\d{1,18}), OpType=(\w+)"
    r".*?\) ran for (\d{1,12}) milliseconds"
)
_GLOO = re.compile(r"Timed out waiting (\d{1,12})ms for (?:recv|send) operation to complete")
_LAST = re.compile(r"[Rr]ank (\d{1,5})\].*?(?:last enqueued(?: NCCL)? work: |last enqueued work: )(\d{1,18})")
_ENDED = re.compile(r": Rank (\d{1,5})")
_BARRIER = re.compile(r"Ranks? (\d{1,5})[\d, ]* failed to pass monitoredBarrier in (\d{1,12}) ms")
_BAR = re.compile(r"\d%\|")
_PREPARING = re.compile(
    r"\s*(?P<what>[^:|]{0,40}\b(?i:tokeniz\w*|map(?:ping)?|filter\w*|generating|convert\w*|pack\w*|group\w*|preprocess\w*|prepar\w*"
    r"|apply\w*|extract\w*|truncat\w*|add\w*|saving the dataset|download\w*|format\w*|process\w*)\b[^:|]{0,80})"
    r":\s*(?P<share>\d{1,3}%)\|"
)
_PREPARE = (
    "Prepare the data before the processes start, once and on its own: LLaMA-Factory tokenized_path, axolotl preprocess, elsewhere "
    "dataset.map(...).save_to_disk in a script of its own. The others wait while rank 0 prepares it.",
    "Or let them wait longer: ddp_timeout (seconds) in TrainingArguments, init_process_group(timeout=...); and prepare faster: "
    "more processes (num_proc, preprocessing_num_workers), a local disk, or streaming.",
)
_FIRST = 1  # the number of the first collective; NCCL makes its connections in it
_CONNECTION = (
    "Rerun with NCCL_DEBUG=INFO, which shows the connections. On one machine, try NCCL_P2P_DISABLE=1 (GPUs behind an IOMMU or with "
    "PCIe ACS, as in virtual machines, hang otherwise).",
    "On several machines, set NCCL_SOCKET_IFNAME to the interface that connects them, open the firewall between them for all "
    "ports, and try NCCL_IB_DISABLE=1.",
)


@dataclass(frozen=True)
class _Wait:
    """A rank whose collective timed out: the log line, the wait, and the collective's number and kind."""

    line: Line
    rank: int | None
    milliseconds: int
    number: int | None = None
    kind: str = ""


def analyze_hang(log: Log, index: int, known: Known) -> Detail:
    """Finds the rank that the others waited for, and what the processes did before."""
    detail = _analyze_wait(log)
    preparing = _preparing(log, index)
    if preparing is None:
        return detail
    explanation = f"{detail.explanation} The last progress before is that of preparing data: {preparing}.".strip()
    return replace(detail, explanation=explanation, fix=(*_PREPARE, *detail.fix))


def _preparing(log: Log, index: int) -> str | None:
    """The last progress bar before the line, if it is that of preparing data and no step was trained before."""
    bars = [text for text in log.searched[:index] if _BAR.search(text)]
    found = _PREPARING.match(bars[-1]) if bars and not log.timeline.shows_training else None
    return f"{found['what'].strip()} {found['share']}" if found else None


def _analyze_wait(log: Log) -> Detail:
    """Finds the rank that the others waited for: the one that reports no wait, or that queued the fewest collectives."""
    if barrier := _BARRIER.search(log.text):
        rank = int(barrier[1])
        return Detail(f"Rank {rank} did not reach a barrier within {int(barrier[2]) / 1000:.0f} s.", rank=rank)
    waits = _waits(log)
    waited = {wait.rank: wait for wait in reversed(waits) if wait.rank is not None}
    if not waited:
        return Detail()
    lines = tuple(wait.line for wait in waited.values())
    one = waits[0]
    ran = f"{f'The collective {one.kind}' if one.kind else 'A collective'} waited {one.milliseconds / 1000:.0f} s"
    hung, why = _hung(log, waited)
    if hung is None:
        ranks = ", ".join(map(str, sorted(waited)))
        if len(waited) == log.ranks > 1 and {wait.number for wait in waited.values()} == {_FIRST}:
            return Detail(f"{ran} on all ranks, and is their first: they do not reach each other.", _CONNECTION, lines)
        return Detail(f"{ran} on rank {ranks}; the log does not show which rank did not join.", evidence=lines)
    return Detail(f"{ran}: rank {hung} {why}.", evidence=_with_own(log, hung, lines), rank=hung)


def analyze_kill(log: Log, index: int, known: Known) -> Detail:
    """Finds the rank that ended before Lathe killed the others: the launcher only reports those that were killed."""
    found = _ENDED.search(log.lines[index].text)
    return Detail(rank=int(found[1])) if found else Detail()


def _waits(log: Log) -> list[_Wait]:
    """Timeouts of NCCL, with rank and collective, and of gloo, which names neither."""
    found = []
    for match in _WAITED.finditer(log.text):
        rank, number, kind, milliseconds = match.groups()
        found.append(_Wait(log.lines[log.index_of(match.start())], int(rank), int(milliseconds), int(number), kind))
    for match in _GLOO.finditer(log.text):
        line = log.lines[log.index_of(match.start())]
        found.append(_Wait(line, line.rank, int(match[1])))
    return found


def _hung(log: Log, waited: dict[int, _Wait]) -> tuple[int | None, str]:
    silent = [rank for rank in range(log.ranks) if rank not in waited]
    if len(silent) == 1:
        return silent[0], "did not join it and reports no wait"
    numbers = {rank: wait.number for rank, wait in waited.items() if wait.number is not None}
    last = {int(found[1]): int(found[2]) for found in _LAST.finditer(log.text)}
    for order, why in (
        (last, "had queued the fewest collectives"),
        (numbers, "waits at an earlier collective than the others"),
    ):
        behind = [rank for rank in order if order[rank] == min(order.values())]
        if len(behind) == 1 and len(order) > 1:
            return behind[0], why
    kinds = {rank: wait.kind for rank, wait in waited.items()}
    odd = [rank for rank in kinds if list(kinds.values()).count(kinds[rank]) == 1]
    if len(odd) == 1 and len(kinds) > 2:
        return odd[0], f"called {kinds[odd[0]]} instead"
    return None, ""


def _with_own(log: Log, rank: int, lines: tuple[Line, ...]) -> tuple[Line, ...]:
    """The timeouts, preceded by the last line of the rank that hung."""
    before = [line for line in log.lines if line.rank == rank and line.number < lines[0].number and line.text.strip()]
    return (*before[-1:], *lines)
