"""The command, the DeepSpeed or FSDP configuration and the YAML of the form's run, in tabs."""

from typing import Any

import gradio as gr

from app.pages.new_run.review import NO_ZERO

READING = "# The settings are being read."  # an empty view of code has a fault of accessibility


def previews_of() -> list[gr.Code]:
    """The components, one for each tab."""
    shared: dict[str, Any] = {
        "interactive": False,
        "show_label": False,
        "wrap_lines": True,
        "show_line_numbers": False,
        "lines": 8,
    }
    with gr.Tabs(elem_classes="card previews"):
        with gr.Tab("Command"):
            command = gr.Code(READING, language="shell", buttons=["copy"], elem_id="command", **shared)
        with gr.Tab("DeepSpeed or FSDP"):
            deepspeed = gr.Code(NO_ZERO, language="json", buttons=["copy"], elem_id="deepspeed", **shared)
        with gr.Tab("YAML"):
            yaml = gr.Code(READING, language="yaml", buttons=["copy"], elem_id="yaml", **shared)
    return [command, deepspeed, yaml]
