"""The queries of served models and prompt sets."""
