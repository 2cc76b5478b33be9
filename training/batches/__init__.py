"""Rows of token stores as the trainer takes them: truncated, labeled, and padded, padding-free, packed or streamed."""
