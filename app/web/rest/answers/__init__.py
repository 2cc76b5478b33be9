"""The forms of REST answers as pydantic models, for the OpenAPI document.

Answers are dictionaries of `app/documents`, sent as they are: the models describe them and convert nothing. A test compares real
answers with them.
"""
