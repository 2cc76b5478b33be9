"""What New run shows until Gradio is live: data, model, task and Start as HTML, which work at once (static/first-form.js)."""

from markupsafe import Markup

from app.pages.new_run import data_chooser, models
from app.pages.new_run.opening import fresh
from app.texts import _
from app.web.templating import filled
from training.config.fields import settings

NAMES = ("data", "model", "task")
"""The settings that can be chosen before the others are there."""


def first_form() -> Markup:
    """The form, with the choices of this installation and the user's usual model."""
    values, task = fresh().values, settings()["task"]
    offered = {
        "data": data_chooser.choices(),
        "model": models.choices(values),
        "task": [(_(label), name) for label, name in zip(task.choice_labels, task.choices, strict=True)],
    }
    return filled("new_run/first_form.html", choices={name: offered[name] for name in NAMES}, values=values)
