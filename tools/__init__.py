"""Programs for developers, beside the product: the starter model, and what is written from the code."""
