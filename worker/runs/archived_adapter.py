"""What the adapter in an archive names: PEFT and transformers load the files and modules that adapter_config.json names."""

from collections.abc import Iterator
from zipfile import ZipFile, ZipInfo

from training.config import json_text
from training.config.choices import Method
from training.config.run_config import RunConfig
from training.model_info.folder import ADAPTER_CONFIG
from worker.allowed_paths import named_paths
from worker.runs.run_archive import FILES

MOST_BYTES = 2**20
# Lathe gives PEFT the model, so that nothing loads what these name.
_NEVER_LOADED = {"base_model_name_or_path", "tokenizer_name_or_path", "revision"}
_OF_MODULES = {"target_modules", "exclude_modules", "target_parameters"}  # patterns, which may look like a path


def faults(source: ZipFile, members: list[ZipInfo], config: RunConfig) -> Iterator[str]:
    """A sentence for each adapter that is not one of the run's method in the folder of its result, or names other files."""
    for member in members:
        if not member.filename.endswith(f"/{ADAPTER_CONFIG}"):
            continue
        if member.filename != f"{FILES}adapter/{ADAPTER_CONFIG}" or not config.method.adapts:
            yield f"has an adapter that no run of the method {config.method.value} has: {member.filename!r}."
        elif member.file_size > MOST_BYTES:
            yield f"has an {ADAPTER_CONFIG} of {member.file_size:,} bytes."
        else:
            yield from _in_values(json_text.load(source.read(member)), config.method)


def _in_values(values: dict[str, object], method: Method) -> Iterator[str]:
    kind = str(values.get("peft_type")).lower()
    if kind != method.in_peft:
        yield f"has an adapter of {kind[:50]}, and its run has the method {method.value}."
    read = {name: value for name, value in values.items() if name not in _NEVER_LOADED | _OF_MODULES}
    for name, value in named_paths(read):
        yield f"has an adapter that names another file: {name[:50]} {str(value)[:100]!r}."
    if values.get("megatron_config") is not None:  # PEFT then imports the module `megatron_core`
        yield "has an adapter that names a Python module: megatron_config."
