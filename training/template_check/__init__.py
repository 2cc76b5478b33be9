"""What is trained: sample rows rendered and tokenized as a run does it, and the faults found in them. No torch."""
