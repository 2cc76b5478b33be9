"""The folders and services of the installation that users see: value, where it comes from, and how to change it."""

import os
from typing import Any

from worker.notifications import mail
from worker.notifications.messages import page_address
from worker.settings import PREFIX, Settings


def folders(settings: Settings, *, admin: bool) -> list[dict[str, Any]]:
    """Where files are. `value` is None where nothing is set; other users than admins do not see paths of the server."""
    below = f"below {PREFIX}DATA_DIR"
    found = [
        _entry("Data folder", settings.data_dir, "data_dir", "Database, runs, data sets and uploads."),
        _entry("Results", settings.runs_dir, below, "A folder for each run: checkpoints, adapter, log."),
        _entry("Data sets", settings.datasets_dir, below, "Imported data sets, each stored once."),
        _entry("Uploads", settings.uploads_dir, below, "Files on their way in; deleted after the import."),
        _entry("Tokenized data sets", settings.tokens_dir, below, "Can be deleted at any time (System, Disk)."),
        _entry("Data files to choose from", settings.data_folders, "data_folders", "Offered on Data sets, no upload."),
        _entry("Models to choose from", settings.model_folders, "model_folders", "Accounts may use models below."),
    ]
    return found if admin else [one | {"value": "set" if one["value"] else None} for one in found]


def services(settings: Settings, *, admin: bool) -> list[dict[str, Any]]:
    """What notifications use: the address for links, the mail server's sender, and hosts for webhooks."""
    sender = mail.sender(settings) if mail.configured(settings) else None
    found = [
        _entry("Address in links", page_address(settings), "public_url", "Notifications link to runs below it."),
        _entry("Mail server", "set" if settings.smtp_url else None, "smtp_url", "Sends notifications by e-mail."),
        _entry("Sender of e-mail", sender, "smtp_from", "Default: the user name of the mail server."),
        _entry("Internal webhook hosts", settings.webhook_hosts, "webhook_hosts", "Webhooks of all users reach them."),
    ]
    return found if admin else found[:3]


def _entry(name: str, value: object, field: str, about: str) -> dict[str, Any]:
    """An entry; `source` is the environment variable and whether it is set, or what the value follows from."""
    variable = f"{PREFIX}{field.upper()}" if field in Settings.model_fields else ""
    return {
        "name": name,
        "value": str(value) if value else None,
        "variable": variable or None,
        "source": (f"{variable}" if os.environ.get(variable) else "default") if variable else field,
        "about": about,
    }
