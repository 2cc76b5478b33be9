"""GGUF files for llama.cpp: models of the common architectures in several types, and LoRA adapters."""
