"""The settings of an installation, from environment variables: LATHE_DATA_DIR, LATHE_DATABASE_URL, ..."""

import hashlib
import os
import re
import shlex
import stat
import sys
import tempfile
from functools import lru_cache
from ipaddress import ip_network
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, ValidationError, ValidationInfo, field_validator, model_validator
from pydantic_settings import SettingsConfigDict

from training.addresses import loopback
from training.errors import Problem, UserError
from training.nearest import nearest
from training.redaction import redact
from worker.engine_settings import EngineSettings

PREFIX = "LATHE_"
OTHERS = (
    "SERVER", "INSECURE",  # app/cli/client.py
    "BIND",  # docker-compose.yml
    "RUN", "SUPERVISOR", "LEASED_GPUS", "PAUSE_AT", "TOKENS", "SERVING_TOKEN",  # of processes that Lathe starts
)  # fmt: skip
"""Variables besides the settings, without their prefix."""
_OF_DEVELOPERS = ("TEST_", "BENCHMARK_", "CHAOS_")
ROOT = Path(__file__).resolve().parent.parent  # the checkout, or site-packages
MAX_SOCKET_PATH = 100  # bytes: Linux allows 107 and macOS 103; Valkey needs a longer temporary name
TOKEN_FILE = "token"  # noqa: S105 a file name


class SettingsError(UserError):
    """Invalid environment variables."""


def default_data_dir() -> Path:
    """`data` in a source checkout, else the user's own data folder."""
    if (ROOT / "pyproject.toml").is_file() and (ROOT / "app").is_dir():
        return ROOT / "data"
    return Path("~/.local/share/lathe").expanduser()


class Settings(EngineSettings):
    """The installation's settings, each from the environment variable LATHE_ + its name; an empty one means the default."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, env_ignore_empty=True, extra="ignore", frozen=True)

    data_dir: Path = Field(default_factory=default_data_dir, description="Folder for the database, runs and data sets.")
    database_url: str = Field("", description="PostgreSQL or SQLite URL. Default: a SQLite file in the data folder.")
    broker_url: str = Field("", description="Redis or Valkey URL. Default: an embedded Valkey server on a Unix socket.")
    host: str = Field(default_factory=loopback, description="Address that the web server listens on.")
    port: int = Field(7860, ge=0, le=65535, description="Port that the web server listens on.")
    allowed_origins: str = Field(
        "", description="Additional origins that browsers may send requests from, separated by commas."
    )
    upload_limit_bytes: int = Field(2 * 1024**3, gt=0, description="Maximum size of a data set file, in bytes.")
    request_seconds: float = Field(
        30, gt=0, description="Timeout for a request's headers, and between two parts of its body, in seconds."
    )
    connections: int = Field(
        512, ge=8, description="Maximum number of requests that the web server answers at a time, open pages included."
    )
    data_folders: str = Field(
        "", description="Folders with data files to choose from on the pages, separated by colons."
    )
    model_folders: str = Field(
        "",
        description="Folders with models that accounts may use, separated by colons. Hub models need no entry.",
    )
    openai_models: str = Field(
        "",
        description="What names of models mean in jobs of OpenAI's API, such as gpt-4.1-mini=Qwen/Qwen3-0.6B, separated by commas.",
    )
    visibility: Literal["all", "own"] = Field(
        "all",
        description="What accounts see: everything (all), or only what they own and what was shared with them (own). Set it for "
        "web servers and workers.",
    )
    token: SecretStr | None = Field(
        None, description="The server's token, at least 32 characters. Default: generated and saved in the data folder."
    )
    trusted_proxies: str = Field(
        "",
        description="Addresses or networks of trusted proxies, separated by commas. 127.0.0.1@33 trusts only user id 33.",
    )
    proxy_user_header: str = Field(
        "", description="Header in which trusted proxies send the name of the signed-in user."
    )
    token_cache_bytes: int = Field(
        50 * 1024**3,
        gt=0,
        description="Maximum disk space for tokenized data sets, in bytes; the least recently used are deleted first.",
    )
    check_templates: bool = Field(
        True,
        description="Render some rows of each new run and check them before it is queued; takes about two seconds.",
    )
    store_url: str = Field(
        "",
        description="Object store of data sets, checkpoints, results and logs, such as s3://bucket/lathe. Default: the data folder "
        "only.",
    )
    store_cache_bytes: int | None = Field(
        None,
        gt=0,
        description="Maximum disk space for finished runs that the object store has too, in bytes. Default: no limit.",
    )
    keep_checkpoints: int | None = Field(
        None, ge=1, description="Checkpoints to keep of a run that has ended, the newest ones. Default: all."
    )
    checkpoint_days: float | None = Field(
        None, gt=0, description="Days after which the checkpoints of a finished run are deleted. Default: never."
    )
    archive_days: float | None = Field(
        None, gt=0, description="Days after which an ended run is archived, unless it is pinned. Default: never."
    )
    public_url: str = Field(
        "",
        description="Address at which users open the pages, such as https://lathe.example. Links in notifications use it.",
    )
    smtp_url: SecretStr | None = Field(
        None,
        description="Mail server: smtps://USER:PASSWORD@HOST:465, or smtp://HOST:587 with STARTTLS. Default: no e-mail.",
    )
    smtp_from: str = Field(
        "", description="Sender of e-mail. Default: the user name in LATHE_SMTP_URL if that is an e-mail address."
    )
    webhook_hosts: str = Field(
        "",
        description="Hosts, such as an own chat server, that webhooks of all users may reach at any address, separated by commas.",
    )
    lease_seconds: float = Field(
        150, gt=0, description="A run is requeued if its supervisor does not renew the lease for this many seconds."
    )
    renew_seconds: float = Field(
        5, gt=0, description="Interval between lease renewals, in seconds: at most a third of the lease."
    )
    max_attempts: int = Field(
        3, ge=1, description="A run fails after this many attempts that crashed or were lost without a new checkpoint."
    )
    overtaking_seconds: float = Field(
        600, ge=0, description="How long later runs that need fewer devices may start before a queued run, in seconds."
    )
    devices: str = Field(
        "",
        description="Devices of this worker: cpu, or GPUs by number (0,1; 0.1 is an instance in MIG mode) or UUID. Default: all "
        "GPUs, or the CPU if there are none.",
    )
    address: str = Field(
        "",
        description="Address at which other workers' machines reach this one, for runs on several machines. Default: that of the"
        " interface through which this machine reaches the database.",
    )
    serve_idle: float = Field(
        15, gt=0, description="Minutes without a request after which a worker ends a served model."
    )
    serve_tenure: float = Field(
        20,
        ge=0,
        description="Seconds for which served models that are asked stay before other models take their place.",
    )
    serve_host: str = Field(
        default_factory=loopback,
        description="Address on which the worker's served models listen, if the web server is on another machine.",
    )
    vllm_command: str = Field(
        "",
        description="Command of vLLM on this worker, such as /opt/vllm/bin/vllm. It then generates answers after training, of "
        "evaluations and in the playground, and samples of runs that ask for it. Default: transformers generates them.",
    )
    vllm_urls: str = Field(
        "",
        description="Addresses of vLLM servers that may draw the samples of accounts' runs, separated by commas. The server's user "
        "may use any.",
    )
    hub_token: SecretStr | None = Field(
        None, description="Model hub token. Only processes that train, merge or upload receive it."
    )

    judge_urls: str = Field(
        "",
        description="Addresses of judges that accounts may use, separated by commas. The server's user may use any.",
    )
    judge_key: SecretStr | None = Field(
        None, description="Key that judges receive as a bearer token; if LATHE_JUDGE_URLS is set, only those."
    )

    @field_validator("data_dir")
    @classmethod
    def _absolute(cls, value: Path) -> Path:
        return value.expanduser().absolute()

    @field_validator("token")
    @classmethod
    def _long_enough(cls, value: SecretStr | None) -> SecretStr | None:
        """Allows only characters that cookies and headers need not escape."""
        if value is not None and not re.fullmatch(r"[A-Za-z0-9._~+/=-]{32,}", value.get_secret_value()):
            raise ValueError("needs 32 characters or more, of letters, digits and . _ ~ + / = -")
        return value

    @field_validator("trusted_proxies")
    @classmethod
    def _addresses(cls, value: str) -> str:
        for part in filter(None, map(str.strip, value.split(","))):
            address, _, uid = part.partition("@")
            ip_network(address, strict=False)
            if uid and not uid.isdecimal():
                raise ValueError(f"{part!r} has no user id after the @")
        return value

    @field_validator("openai_models")
    @classmethod
    def _pairs(cls, value: str) -> str:
        for part in filter(None, map(str.strip, value.split(","))):
            name, _, model = part.partition("=")
            if not name.strip() or not model.strip():
                raise ValueError(f"{part!r} is not NAME=MODEL")
        return value

    @field_validator("vllm_command")
    @classmethod
    def _words(cls, value: str) -> str:
        shlex.split(value)  # a ValueError if a quotation is not closed
        return value

    @field_validator("store_cache_bytes")
    @classmethod
    def _has_store(cls, value: int | None, known: ValidationInfo) -> int | None:
        if value is not None and not known.data.get("store_url"):
            raise ValueError("needs LATHE_STORE_URL, the object store that keeps the files")
        return value

    @field_validator("public_url")
    @classmethod
    def _page_address(cls, value: str) -> str:
        parts = urlsplit(value)
        if value and (parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment):
            raise ValueError("is not an http or https address")
        return value.rstrip("/")

    @field_validator("smtp_url")
    @classmethod
    def _mail_server(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None:
            parts = urlsplit(value.get_secret_value())
            if parts.scheme not in ("smtp", "smtps") or not parts.hostname or parts.path.strip("/") or parts.query:
                raise ValueError("is not smtp://HOST or smtps://HOST, with USER:PASSWORD@ and :PORT if needed")
            _ = parts.port  # a ValueError if it is no number
        return value

    @model_validator(mode="after")
    def _renews_in_time(self) -> "Settings":
        if self.renew_seconds * 3 > self.lease_seconds:
            raise ValueError("lease_seconds must be at least three times renew_seconds")
        return self

    @property
    def openai_model_names(self) -> dict[str, str]:
        """What names of models in jobs of OpenAI's API mean."""
        pairs = (part.partition("=") for part in self.openai_models.split(",") if part.strip())
        return {name.strip(): model.strip() for name, _, model in pairs}

    @property
    def runs_dir(self) -> Path:
        return self.data_dir / "runs"

    @property
    def datasets_dir(self) -> Path:
        return self.data_dir / "datasets"

    @property
    def uploads_dir(self) -> Path:
        return self.data_dir / "uploads"

    @property
    def tokens_dir(self) -> Path:
        """The folder of tokenized data sets, shared by pages and runs."""
        return self.data_dir / "tokens"

    @property
    def sqlalchemy_url(self) -> str:
        """The database's URL with its driver: SQLite in the data folder unless another is set."""
        scheme, separator, rest = self.database_url.partition("://")
        if not separator:
            return f"sqlite:///{self.data_dir / 'lathe.db'}"
        return f"{'postgresql+psycopg' if scheme in ('postgres', 'postgresql') else scheme}://{rest}"

    @property
    def celery_broker_url(self) -> str:
        return self.broker_url or f"redis+socket://{self.socket_path}"

    @property
    def socket_path(self) -> Path:
        """The socket of the embedded broker: in the data folder, or in a private temporary folder if that path is too long.

        Raises:
            SettingsError: the temporary folder belongs to another user.
        """
        path = self.data_dir / "broker.sock"
        if len(os.fsencode(path)) <= MAX_SOCKET_PATH:
            return path
        digest = hashlib.sha256(os.fsencode(self.data_dir)).hexdigest()[:12]
        return _private_folder(Path(tempfile.gettempdir()) / f"lathe-{os.getuid()}-{digest}") / "broker.sock"

    def make_folders(self) -> None:
        """Creates the data folder and its subfolders, private to this user.

        Raises:
            SettingsError: they cannot be created.
        """
        try:
            for folder in (self.data_dir, self.runs_dir, self.datasets_dir, self.uploads_dir):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            given, message = str(self.data_dir), f"cannot be created: {error.strerror}."
            raise SettingsError(f"{PREFIX}DATA_DIR", given, message, "Give a writable folder.") from None


@lru_cache(maxsize=1)
def get_settings() -> Settings:
    """The settings of this process, read once. Raises SettingsError with a problem for each invalid variable."""
    try:
        return Settings()
    except ValidationError as error:
        first, *others = [_problem(list(detail["loc"]), detail["input"], detail["msg"]) for detail in error.errors()]
        raise SettingsError(first.field, first.value, first.message, first.fix, *others) from None


def unknown_variables() -> list[Problem]:
    """A problem for each variable of the environment with Lathe's prefix that no part of Lathe reads, with the nearest name."""
    names = [*(name.upper() for name in Settings.model_fields), *OTHERS]
    given = sorted(name.removeprefix(PREFIX) for name in os.environ if name.startswith(PREFIX))
    unknown = [name for name in given if name not in names and not name.startswith(_OF_DEVELOPERS)]
    near = {name: nearest(name, names, cutoff=0.0) for name in unknown}
    return [
        Problem(
            f"{PREFIX}{name}",
            None,
            "is not read by Lathe.",
            f"Did you mean {PREFIX}{near[name][0]}?" if near[name] else "",
        )
        for name in unknown
    ]


def name_unknown_variables() -> None:
    """Prints `unknown_variables` to stderr, for programs that start."""
    for problem in unknown_variables():
        sys.stderr.write(f"warning: {problem}\n")


def hub_token() -> str | None:
    """The model hub's token: LATHE_HUB_TOKEN, or HF_TOKEN. Never stored or shown."""
    configured = get_settings().hub_token
    return (configured.get_secret_value() if configured else None) or os.environ.get("HF_TOKEN") or None


def hub_is_offline() -> bool:
    """True if the hub's client only uses models on this machine (HF_HUB_OFFLINE)."""
    return os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on")


def _problem(place: list[int | str], value: object, message: str) -> Problem:
    if not place:
        return Problem(f"{PREFIX}LEASE_SECONDS", None, f"{message.removeprefix('Value error, ')}.", "Raise it.")
    name = str(place[0])
    secret = "SecretStr" in str(Settings.model_fields[name].annotation)
    given = None if secret else redact(value) if isinstance(value, str) else value
    wanted = Settings.model_fields[name].description or ""
    return Problem(f"{PREFIX}{name.upper()}", given, f"{message[0].lower()}{message[1:]}.", wanted)


def _private_folder(path: Path) -> Path:
    path.mkdir(mode=0o700, exist_ok=True)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        fix = f"Delete it, or set {PREFIX}DATA_DIR to a shorter path."
        raise SettingsError("temporary folder", str(path), "is not private to you.", fix)
    return path
