"""What a backup contains, by name."""

from worker.settings import TOKEN_FILE

FORMAT = 1
FACTS = "lathe-backup.json"
DATABASE = "lathe.db"
TOKEN = TOKEN_FILE
FOLDERS = ("datasets", "diagnoses", "runs")
"""Of the data folder. Tokenized data sets, uploads and the queue are made anew."""
END = "complete"
"""An empty file, the last."""
