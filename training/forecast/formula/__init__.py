"""The memory of a run at each moment of its steps, by formula. No torch."""
