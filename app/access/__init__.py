"""The caller of a request, and what they may read and change."""
