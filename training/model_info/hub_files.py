"""`python -m training.model_info.hub_files MODEL [REVISION]` downloads the files of a hub model but its weights into the
cache of the hub's client, where confined programs read them, and prints their folder."""

import sys

from huggingface_hub import snapshot_download

NEEDED = ("*.json", "*.jinja", "*.model", "*.txt", "*.tiktoken")


def main(model: str, revision: str | None = None) -> None:
    print(snapshot_download(model, revision=revision, allow_patterns=list(NEEDED)))


if __name__ == "__main__":
    main(*sys.argv[1:])
