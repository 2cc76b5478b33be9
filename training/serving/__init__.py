"""Serves a base model, its adapters and other models over HTTP as OpenAI's API does: `python -m training.serving`."""
