"""The states that documents name, for the catalogue: a page shows them with `_`."""

from app.texts import gettext_noop as _

STATES = (
    _("queued"), _("running"), _("stopping"), _("stopped"), _("stopped early"), _("paused"), _("finished"), _("failed"),
    _("diverged"), _("canceled"), _("held"), _("training"), _("ready"), _("starting"), _("waiting"),
)  # fmt: skip
