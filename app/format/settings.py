"""Words of the page Settings."""

EVENTS = {"finished": "Finished", "failed": "Failed", "stopped": "Stopped", "diverged": "Loss not finite"}
USUAL_EVENTS = ("finished", "failed", "diverged")
FORMATS = {
    "": "by the host",
    "json": "JSON",
    "slack": "Slack, Mattermost: text",
    "discord": "Discord: content",
    "ntfy": "ntfy: plain text",
}
CHANNELS = {"json": "Webhook, JSON", "slack": "Webhook, text", "discord": "Webhook, Discord", "ntfy": "Webhook, ntfy"}
ROLES = {
    "runs the server": "the user who runs the server: may change everything",
    "admin": "admin: may change all runs and data sets, and manages users",
    "user": "user: changes own runs and data sets",
}
