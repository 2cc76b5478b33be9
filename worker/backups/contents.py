"""What a backup contains, by name."""

from pydantic import BaseModel, Field

from worker.settings import TOKEN_FILE

FORMAT = 1
FACTS = "lathe-backup.json"
DATABASE = "lathe.db"
TOKEN = TOKEN_FILE
FOLDERS = ("datasets", "diagnoses", "runs")
"""Of the data folder. Tokenized data sets, uploads and the queue are made anew."""
END = "complete"
"""An empty file, the last."""


class Facts(BaseModel):
    """What a backup says of itself. `bytes` is its size; it was made `made_at` seconds after the epoch."""

    format: int = FORMAT
    bytes: int = Field(ge=0)
    tables: str
    version: str
    made_at: float = Field(ge=0, lt=1e11)
