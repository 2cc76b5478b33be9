"""The states that documents name, for the catalogue: a page shows them with `_`."""

from app.texts import gettext_noop as _

STATES = (
    _("queued"), _("running"), _("stopping"), _("stopped"), _("stopped early"), _("paused"), _("finished"), _("failed"),
    _("diverged"), _("canceled"), _("held"), _("training"), _("ready"), _("starting"), _("waiting"),
    _("requeued"), _("lost"), _("starved"), _("high"), _("normal"), _("low"), _("sampling"), _("loading vLLM"),
    _("became right"), _("became wrong"), _("changed"), _("unchanged"), _("equal"), _("differs"), _("lossy"), _("not checked"),
    _("compiling DeepSpeed operators"), _("loading data"), _("loading model"), _("preparing"), _("probing"), _("evaluating"),
    _("saving"), _("answering"), _("merging"), _("pushing"), _("scoring"), _("judging"), _("verifying"), _("starting supervisor"),
    _("describing"), _("packing"), _("not answered"), _("not merged"), _("not verified"), _("no model card"), _("not pushed"),
    _("not packed"),
)  # fmt: skip
