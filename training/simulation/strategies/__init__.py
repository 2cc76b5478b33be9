"""What each strategy allocates and frees on one rank during a step, with fake tensors."""
