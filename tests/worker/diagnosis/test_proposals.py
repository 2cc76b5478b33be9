"""A proposal names only numbers that the log or the run's settings have, or that the documents state."""

import re

from paths import TESTS
from subtest_table import table

from tools.references import diagnosis as reference
from worker.diagnosis.diagnosis import diagnose

LOGS = sorted((TESTS / "logs").rglob("*.log"))
SETTINGS = {"micro_batch_size": 6, "gradient_accumulation_steps": 7, "max_length": 1536}
NUMBER = re.compile(r"(?<![\w.])\d+(?:[.,]\d+)*")
VERSION = re.compile(r"(?:transformers|trl|accelerate|datasets|peft|CUDA) \d[\d.]*(?: to [\d.]+)?")
OLD_TORCH = (
    "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 23.69 GiB total capacity; 9.87 GiB already "
    "allocated; 1.25 GiB free; 21.55 GiB reserved in total by PyTorch)\n"
)
NEW_TORCH = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of 23.69 GiB of which "
    "1.25 GiB is free. Process 4711 has 5.43 GiB memory in use. Including non-PyTorch memory, this process has 17.01 GiB memory "
    "in use. Of the allocated memory 9.87 GiB is allocated by PyTorch, and 6.54 GiB is reserved by PyTorch but unallocated.\n"
)
DOCUMENTED = set(NUMBER.findall(reference.render()))


def unexplained(text, settings):
    """The numbers of the diagnosis's proposal that are in neither the log, the settings, nor the documents."""
    diagnosis = diagnose(text, config=settings)
    proposed = [VERSION.sub("", sentence) for sentence in diagnosis.fix] + [str(diagnosis.changes)]
    known = DOCUMENTED | {str(value) for value in settings.values()}
    logged = NUMBER.findall(text.replace("x", " "))  # torch writes shapes as 8x768
    numbers = {number for sentence in proposed for number in NUMBER.findall(sentence)}
    return [number for number in numbers if number not in known and not any(is_rounded(number, of) for of in logged)]


def is_rounded(number, of):
    """True if the number is the other one, or that with fewer decimals."""
    try:
        return abs(float(number) - float(of)) <= 0.501 / 10 ** len(number.partition(".")[2])
    except ValueError:  # several dots or commas
        return number == of


@table("path", LOGS)
def test_a_proposal_names_no_number_of_its_own(path):
    assert unexplained(path.read_text(encoding="utf-8"), {}) == []


@table("text", [OLD_TORCH, NEW_TORCH])
def test_a_proposal_for_memory_names_the_sizes_of_the_message_and_the_runs_settings(text):
    halved = {"3", "14"}  # the micro batch's half and twice the accumulation: computed from the settings
    assert set(unexplained(text, SETTINGS)) <= halved
    assert any("fragmented" in sentence for sentence in diagnose(text, config=SETTINGS).fix)
