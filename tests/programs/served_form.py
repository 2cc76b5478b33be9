"""Serves the model in a folder as its own form, and prints the address and the tokens of a text."""

import sys
from pathlib import Path

from training.config.run_config import RunConfig
from training.results.parity.forms import served_form
from training.results.parity.reference import ReferencePrompt

folder = sys.argv[1]
with served_form(RunConfig(model=folder, data="none", method="full"), Path(folder), {}) as form:
    print(form._address, form.prompt_ids(ReferencePrompt(0, [], "Hello"), {}))
