"""Imports, checks, stores, previews and tokenizes data sets."""
