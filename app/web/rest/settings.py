"""REST routes of the caller's settings: account, token, preferences, and the installation's folders."""

from typing import Annotated, Any

from fastapi import Body
from pydantic import BaseModel, ConfigDict

from app.access import account, callers, notify
from app.documents import installation
from app.web.rest.answers.form import answers
from app.web.rest.answers.settings import SettingsAnswer
from app.web.rest.answers.system import NewToken
from app.web.rest.json_route import JsonRouter
from worker.settings import get_settings

router = JsonRouter(prefix="/api/settings")


class NewPreferences(BaseModel):
    """What the caller prefers; `model` is that of a new form on New run, empty for none."""

    model_config = ConfigDict(extra="forbid")

    model: str


@router.get("", **answers(SettingsAnswer))
def show_settings() -> dict[str, Any]:
    """The caller's account and preferences, and the folders and services of the installation with their variables."""
    caller, settings = callers.current(), get_settings()
    admin = caller.is_local or caller.admin
    return {
        "account": account.document(),
        "preferences": {"model": notify.current_preferences().model},
        "folders": installation.folders(settings, admin=admin),
        "services": installation.services(settings, admin=admin),
    }


@router.put("", **answers(SettingsAnswer))
def change_settings(wanted: Annotated[NewPreferences, Body()]) -> dict[str, Any]:
    """Changes the caller's preferences."""
    notify.set_model(wanted.model)
    return show_settings()


@router.post("/token", **answers(NewToken))
def rotate_own_token() -> dict[str, str]:
    """Replaces the caller's token; the old one stops working. The answer holds the new one, only this once."""
    return {"name": callers.current().name, "token": account.rotate()}
