"""The first drawing of a page: its content as HTML in the server's response, until Gradio has drawn the live page."""
