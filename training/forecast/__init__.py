"""How much memory a run needs and which settings would fit, by formula. No torch."""
