"""Memory forecasts for a run with its data and its GPU, by formula or simulation, and their accuracy."""
