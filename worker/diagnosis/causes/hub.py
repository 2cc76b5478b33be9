"""Causes of failure: the model hub and other services on the network."""

from worker.diagnosis.cause import Cause, Kind, sign
from worker.diagnosis.conditions import by_remote_server, outside

_WRITES = r"/api/repos/(?:create|move|delete)|/commit/|/preupload/|/api/\w+/[^ ]*/(?:branch|tag)/"
_FOR_URL = r"for url '[^']*(?:huggingface\.co|hf\.co|/resolve/)"  # httpx, which huggingface_hub 1 uses
_PUSHES = r"push_to_hub|create_repo|create_commit|upload_(?:file|folder)|preupload|init_hf_repo"

CAUSES = (
    Cause(
        "model_gated",
        "The hub refused access to the model or data set: it is gated or private, and no token with access was sent.",
        (
            sign(
                r"You are trying to access a gated repo|GatedRepoError(?=:|$)|Cannot access gated repo for url (?P<url>\S+)|(?<!\S)(?P<model>\S{1,200}) is a gated repository",
                0.98,
            ),
            sign(
                r"Access to (?:model|dataset) (?P<model>\S+) is restricted|Your request to access (?:model|dataset) (?P<asked>\S+)|not in the authorized list|enable access to public gated repositories",
                0.97,
            ),
            sign(
                rf"^(?!.*RepositoryNotFoundError).*(?:401|403) Client Error(?!.*(?:{_WRITES})).*(?:huggingface\.co|hf\.co|/resolve/)",
                0.9,
                when=outside(_PUSHES),
            ),
            sign(rf"Client error '(?:401|403)[^']*' (?!.*(?:{_WRITES})){_FOR_URL}", 0.9, when=outside(_PUSHES)),
            sign(
                r"is a gated dataset on the Hub|Unauthorized for URL|LocalTokenNotFoundError|Token is required \(`?token=True`?\)",
                0.88,
                when=outside(_PUSHES),
            ),
            sign(r"(?:401|403) Client Error.*kaggle\.com|KaggleApiHTTPError: 40[13]|resource requiring consent", 0.9),
            sign(
                r"Invalid (?:user token|username or password|token passed)|Invalid credentials in Authorization header",
                0.85,
                when=outside(_PUSHES),
            ),
        ),
        (
            "Request access on the model's page, then set HF_TOKEN in the worker's environment to a token that may read it (a fine-grained one needs gated access).",
            "Or download the model another way and give its folder.",
        ),
    ),
    Cause(
        "model_not_found",
        "The model or data set is neither a local folder nor a repository on the hub.",
        (
            sign(
                r"(?<!\S)(?P<model>\S{1,300}) is not a local folder (?:and is not a valid model identifier|or a valid repository name)",
                0.96,
                Kind.OUTCOME,
            ),
            sign(
                rf"(?:RepositoryNotFoundError|RevisionNotFoundError)(?=:|$)|404 Client Error(?!.*(?:{_WRITES})).*/api/(?:models|datasets)",
                0.9,
                when=outside(_PUSHES),
            ),
            sign(rf"404 Client Error(?!.*(?:{_WRITES})).*(?:huggingface\.co|/resolve/)", 0.8, when=outside(_PUSHES)),
            sign(
                r"(?:Dataset|Revision) '(?P<model>[^']+)' doesn't exist (?:on the Hub|for dataset)|Couldn't find '?(?P<name>[^' ]+)'? on the Hugging Face Hub either",
                0.9,
            ),
            sign(r"HFValidationError: (?:Repo id must|Repo_id cannot|Cannot have)", 0.93),
            sign(r"Incorrect path_or_model_id: '(?P<model>[^']+)'", 0.95),
            sign(rf"Client error '404[^']*' (?!.*(?:{_WRITES})){_FOR_URL}", 0.8, when=outside(_PUSHES)),
            sign(r"(?P<revision>\S{1,200}) is not a valid git identifier \(branch name, tag name or commit id\)", 0.93),
            sign(
                r"Can't load (?:tokenizer|the model|the configuration|config) (?:for|of) '(?P<model>[^']+)'\. If you were trying",
                0.75,
                Kind.OUTCOME,
            ),
        ),
        (
            "Check the spelling (owner/name), the revision, and that the folder exists on this machine. A private model needs HF_TOKEN.",
        ),
        explanation="Given: {model}.",
    ),
    Cause(
        "hub_rate_limited",
        "The hub received too many requests and refused this one.",
        (
            sign(
                r"429 Client Error|Client error '429|429 Too Many Requests|HTTP Error 429|We had to rate limit you",
                0.95,
            ),
            sign(r"Failed to request \S+ - 429\b|[Ss]tatus(?: code)?:? 429\b", 0.93),
        ),
        ("Wait a few minutes; set a token (HF_TOKEN); let one process download first, then set HF_HUB_OFFLINE=1.",),
    ),
    Cause(
        "network_unreachable",
        "The model hub cannot be reached.",
        (
            sign(r"We couldn't connect to '(?P<url>[^']+)' to load", 0.93, Kind.OUTCOME),
            sign(r"(?:LocalEntryNotFoundError|OfflineModeIsEnabled)(?=:|$)", 0.93, Kind.OUTCOME),
            sign(r"(?<!\()[Oo]ffline mode is enabled|outgoing traffic has been disabled", 0.95),
            sign(r"There was a specific connection error when trying to load", 0.7, Kind.OUTCOME),
            sign(
                r"Data processing error: (?:CAS|File reconstruction|Reqwest)|CAS service error|hf_xet\.\w+",
                0.75,
            ),
            sign(r"An error occurred while downloading using `hf_transfer`", 0.75, Kind.OUTCOME),
            sign(r"CERTIFICATE_VERIFY_FAILED|URLError: <urlopen error|ConnectionError: Couldn't reach", 0.9),
            sign(
                r"^(?:[\w.]+\.)?(?:(?:Read|Connect|Pool)Timeout(?:Error)?|ReadError|RemoteProtocolError|ChunkedEncodingError)(?:: |$)",
                0.85,
            ),
            sign(r"TimeoutError: .*(?:timed out|timeout)", 0.8, when=by_remote_server),
            sign(
                r"(?:NameResolutionError|Temporary failure in name resolution|Name or service not known|Network is unreachable).*",
                0.85,
            ),
            sign(
                r"MaxRetryError\(.*(?:huggingface|hf\.co)|^(?!.*(?:localhost|127\.0\.0\.1)).*Max retries exceeded with url",
                0.85,
            ),
            sign(r"(?:ReadTimeout(?:Error)?|ConnectTimeout).*(?:huggingface|hf\.co)", 0.9),
            sign(
                r"Couldn't reach '?[^']{1,200}'? on the Hub|'Connection aborted\.'|IncompleteRead\(|Connection broken:",
                0.85,
            ),
            sign(r"^(?:[\w.]+\.)?(?:ClientConnector\w*Error|ConnectError|SSLError|ProxyError): ", 0.85),
            sign(r"(?:5\d\d Server Error|Server error '5\d\d).*(?:huggingface|hf\.co)", 0.8),
            sign(r"Connection reset by peer", 0.8, when=by_remote_server),
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
                rf"(?:(?:401|403) Client Error|Client error '(?:401|403)).*(?:{_WRITES})|You don't have the rights to create a model under",
                0.95,
            ),
            sign(
                r"40[0134] Client Error|Client error '40[0134]|RepositoryNotFoundError|LocalTokenNotFoundError",
                0.85,
                inside=_PUSHES,
            ),
            sign(
                r"Token must be specified for push to hub|Token is required (?:to|for) (?:push|upload|write)|Token is required \(write-access action\)|Token is valid but is 'read-only'|You need to provide a `token` or be logged in to Hugging Face",
                0.9,
            ),
            sign(
                r"storage (?:limit|quota) (?:reached|exceeded)|You already created this \w+ repo|unauthorized to upload to xet storage",
                0.9,
            ),
            sign(r"[Pp]lease (?:supply|provide|pass) (?:a|your) (?:\w+ )?token", 0.8, inside=_PUSHES),
        ),
        (
            "Set HF_TOKEN to a token with write permission for that user or organization, or push under your own name (hub_model_id).",
            "Training itself needs no push: set push_to_hub to false; the result is in the output folder.",
        ),
    ),
)
