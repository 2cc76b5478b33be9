"""Where the tests, the programs that they start, and the project are."""

from pathlib import Path

TESTS = Path(__file__).resolve().parent
PROGRAMS = TESTS / "programs"
ROOT = TESTS.parent
