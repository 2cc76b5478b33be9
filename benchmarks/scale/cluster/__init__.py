"""A simulated Slurm cluster in virtual time, driven by the product's own engine."""
