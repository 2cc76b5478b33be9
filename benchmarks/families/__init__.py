"""The families of models that transformers has: how Lathe counts them, and whether their rows may be concatenated."""
