"""vLLM as the program that generates answers: what it can load, its process, and requests to it."""
