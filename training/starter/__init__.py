"""The starter model: its text, its tokenizer, its pretraining and its sample data."""
