"""Reads facts about a model from its folder: config.json and the headers of its weights. No torch."""
