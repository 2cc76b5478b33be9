"""`python -m benchmarks.gpu`: what only a GPU can show. A part is a module with one function, `measure`."""
