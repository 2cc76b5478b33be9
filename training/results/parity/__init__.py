"""Compares each form in which a result is handed out with what was trained: prompt tokens, answers and logits."""
