"""Causes of failure: the model hub and other services on the network."""

from worker.diagnosis.cause import Cause, sign

CAUSES = (
    Cause(
        "model_gated",
        "The hub refused access to the model: it is gated or private, and no token with access was sent.",
        (
            sign(
                r"You are trying to access a gated repo|GatedRepoError|Cannot access gated repo for url (?P<url>\S+)",
                0.98,
            ),
            sign(r"Access to model (?P<model>\S+) is restricted", 0.98),
            sign(
                r"(?:401|403) Client Error(?!.*(?:/api/repos/create|/commit/|/preupload/)).*(?:huggingface\.co|hf\.co|/resolve/)",
                0.9,
            ),
            sign(r"Invalid (?:user token|username or password)|Invalid credentials in Authorization header", 0.9),
        ),
        (
            "Request access on the model's page, then set HF_TOKEN in the worker's environment to a token that may read it (a fine-grained one needs gated access).",
            "Or download the model another way and give its folder.",
        ),
    ),
    Cause(
        "model_not_found",
        "The model is neither a local folder nor a repository on the hub.",
        (
            sign(r"(?<!\S)(?P<model>\S{1,300}) is not a local folder and is not a valid model identifier", 0.96),
            sign(
                r"RepositoryNotFoundError|RevisionNotFoundError|404 Client Error.*(?:huggingface\.co|/resolve/|/api/models)",
                0.9,
            ),
            sign(r"HFValidationError: Repo id must", 0.93),
            sign(r"Incorrect path_or_model_id: '(?P<model>[^']+)'", 0.95),
        ),
        (
            "Check the spelling (owner/name), the revision, and that the folder exists on this machine. A private model needs HF_TOKEN.",
        ),
        explanation="Given: {model}.",
    ),
    Cause(
        "hub_rate_limited",
        "The hub received too many requests and refused this one.",
        (sign(r"429 Client Error|429 Too Many Requests|We had to rate limit you", 0.95),),
        ("Wait a few minutes; set a token (HF_TOKEN); let one process download first, then set HF_HUB_OFFLINE=1.",),
    ),
    Cause(
        "network_unreachable",
        "The model hub cannot be reached.",
        (
            sign(r"We couldn't connect to '(?P<url>[^']+)' to load", 0.96),
            sign(r"LocalEntryNotFoundError|OfflineModeIsEnabled|outgoing traffic has been disabled", 0.95),
            sign(
                r"(?:NameResolutionError|Temporary failure in name resolution|Name or service not known|Network is unreachable).*",
                0.85,
            ),
            sign(r"MaxRetryError\(.*(?:huggingface|hf\.co)|Max retries exceeded with url", 0.85),
            sign(r"(?:ReadTimeoutError|ConnectTimeout).*(?:huggingface|hf\.co)", 0.9),
        ),
        (
            "Download the model on a machine with internet access and give its folder, or set HF_HOME to a cache that contains it and HF_HUB_OFFLINE=1.",
            "Behind a proxy, set HTTPS_PROXY; for a mirror, set HF_ENDPOINT.",
        ),
    ),
    Cause(
        "hub_write_refused",
        "The hub refused to create or change a repository.",
        (
            sign(
                r"403 Client Error.*(?:/api/repos/create|/commit/|/preupload/)|You don't have the rights to create a model under",
                0.95,
            ),
            sign(r"Token must be specified for push to hub|Token is required (?:to|for) (?:push|upload|write)", 0.9),
        ),
        (
            "Set HF_TOKEN to a token with write permission for that user or organization, or push under your own name (hub_model_id).",
            "Training itself needs no push: set push_to_hub to false; the result is in the output folder.",
        ),
    ),
)
