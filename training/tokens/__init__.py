"""Tokenizes a data set once into a token store, and decides the order of rows and which are held out. numpy, no torch."""
