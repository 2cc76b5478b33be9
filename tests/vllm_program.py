"""The stand-in for vLLM (programs/stand_in_vllm.py), as a program of a folder."""

import os
from pathlib import Path

import pytest
import warm
from paths import PROGRAMS

from training.run_folder.paths import VLLM_VARIABLE


def install(folder: Path) -> Path:
    """Makes the program `vllm` in the folder; it is a fork of the warm launcher."""
    script = folder / "vllm"
    code = f"import runpy; runpy.run_path({str(PROGRAMS / 'stand_in_vllm.py')!r}, run_name='__main__')"
    script.write_text(f'#!/bin/sh\nexec {warm.python()} -c "{code}" "$@"\n')
    script.chmod(0o700)
    return script


def use(monkeypatch: pytest.MonkeyPatch, folder: Path, wrong: str = "") -> None:
    """Lets the programs of this process answer by the stand-in; `wrong` is what goes wrong in it."""
    monkeypatch.setenv("PATH", f"{install(folder).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv(VLLM_VARIABLE, "vllm")
    monkeypatch.setenv("STAND_IN_VLLM", wrong)
