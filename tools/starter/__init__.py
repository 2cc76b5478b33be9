"""Makes the starter model: generated text, tokenizer, pretraining and sample data."""
