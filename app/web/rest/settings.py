"""REST routes of the caller's settings: account, token, preferences, and the installation's folders."""

from typing import Annotated, Any

from fastapi import Body
from pydantic import Field

from app.access import account, callers, notify
from app.documents import installation
from app.web.rest.routing import Answer, BodyForm, JsonRouter, answers
from app.web.rest.users import NewToken
from worker.settings import get_settings


class AccountOfCaller(Answer):
    """The caller: the name under which their runs are listed, and where their token is kept (null: they have none)."""

    name: str
    role: str
    signed_in: bool
    token: str | None


class Preferences(Answer):
    """What the caller prefers."""

    model: str = Field(description="that of a new form on New run; empty for none")
    price_gpu_hour: str = Field(description="such as 2.50, or h100=2.50, l4=0.60; empty if costs are not estimated")
    price_kwh: str


class InstallationEntry(Answer):
    """A folder or service of the installation: its value, the variable that sets it, and where the value comes from."""

    name: str
    value: str | None
    variable: str | None
    source: str
    about: str


class SettingsAnswer(Answer):
    """The caller's account and preferences, and the folders and services of the installation."""

    account: AccountOfCaller
    preferences: Preferences
    folders: list[InstallationEntry]
    services: list[InstallationEntry]


router = JsonRouter(prefix="/api/settings")


class NewPreferences(BodyForm):
    """What the caller prefers; what is left out stays."""

    model: str | None = None
    price_gpu_hour: str | None = None
    price_kwh: str | None = None


@router.get("", **answers(SettingsAnswer))
def show_settings() -> dict[str, Any]:
    """The caller's account and preferences, and the folders and services of the installation with their variables."""
    caller, settings = callers.current(), get_settings()
    admin = caller.administers
    return {
        "account": account.document(),
        "preferences": notify.current_preferences().model_dump(include=set(Preferences.model_fields)),
        "folders": installation.folders(settings, admin=admin),
        "services": installation.services(settings, admin=admin),
    }


@router.put("", **answers(SettingsAnswer))
def change_settings(wanted: Annotated[NewPreferences, Body()]) -> dict[str, Any]:
    """Changes the caller's preferences."""
    notify.change_preferences(**{name: value for name, value in wanted if value is not None})
    return show_settings()


@router.post("/token", **answers(NewToken))
def rotate_own_token() -> dict[str, str]:
    """Replaces the caller's token; the old one stops working. The answer holds the new one, only this once."""
    return {"name": callers.current().name, "token": account.rotate()}
