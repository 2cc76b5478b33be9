"""What an installation of Lathe is told through its environment: LATHE_DATA_DIR, LATHE_DATABASE_URL, ..."""

import hashlib
import os
import re
import stat
import tempfile
from functools import lru_cache
from ipaddress import ip_network
from pathlib import Path

from pydantic import Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

PREFIX = "LATHE_"
ROOT = Path(__file__).resolve().parent.parent  # the checkout, or site-packages
MAX_SOCKET_PATH = 100  # bytes: Linux takes 107 and macOS 103, and Valkey writes a temporary name beside it


class SettingsError(ValueError):
    """An environment variable that cannot be used; the message names it, the value given and the fix."""


def default_data_dir() -> Path:
    """`data` in a source checkout, else the user's own data folder."""
    if (ROOT / "pyproject.toml").is_file() and (ROOT / "app").is_dir():
        return ROOT / "data"
    return Path("~/.local/share/lathe").expanduser()


class Settings(BaseSettings):
    """The installation's settings, each from the environment variable LATHE_ + its name; empty means the default."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, env_ignore_empty=True, extra="ignore", frozen=True)

    data_dir: Path = Field(default_factory=default_data_dir, description="Folder of database, runs and data sets.")
    database_url: str = Field("", description="PostgreSQL or SQLite URL; empty keeps a SQLite file in the data folder.")
    broker_url: str = Field("", description="Redis or Valkey URL; empty starts a server of its own on a Unix socket.")
    host: str = Field("127.0.0.1", description="Address the web server listens on.")
    port: int = Field(7860, ge=0, le=65535, description="Port the web server listens on.")
    allowed_origins: str = Field("", description="Other origins that may call the web server, separated by commas.")
    upload_limit_bytes: int = Field(2 * 1024**3, gt=0, description="Largest data set file that is taken, in bytes.")
    request_seconds: float = Field(
        30, gt=0, description="How long a client may take to send a request's head, or between two parts of its body."
    )
    connections: int = Field(512, ge=8, description="Most connections to the web server at once.")
    data_folders: str = Field("", description="Folders whose data files the pages offer, separated by colons.")
    model_folders: str = Field(
        "", description="Folders whose models accounts may name, separated by colons; others only by hub id."
    )
    token: SecretStr | None = Field(
        None, description="The server's token, 32 characters or more; empty makes one in the data folder."
    )
    trusted_proxies: str = Field(
        "",
        description="Addresses or networks of proxies in front, separated by commas; 127.0.0.1@33 is of user id 33 only.",
    )
    proxy_user_header: str = Field("", description="Header in which those proxies name who has signed in with them.")
    token_cache_bytes: int = Field(
        50 * 1024**3, gt=0, description="Most that tokenized data sets may take on disk; the least used go first."
    )
    lease_seconds: float = Field(
        150, gt=0, description="A run whose supervisor is silent for so long is started again."
    )
    renew_seconds: float = Field(5, gt=0, description="How often a supervisor renews its lease: a third of it or less.")
    max_attempts: int = Field(3, ge=1, description="Starts that may be lost or crash before a run counts as failed.")
    overtaking_seconds: float = Field(
        600, ge=0, description="How long a queued run may be overtaken by later ones that need fewer devices."
    )
    devices: str = Field(
        "", description="What this worker may use: cpu, or GPUs such as 0,1; empty takes every GPU, else the CPU."
    )
    hub_token: SecretStr | None = Field(None, description="Model hub token, given to the training process alone.")

    @field_validator("data_dir")
    @classmethod
    def _absolute(cls, value: Path) -> Path:
        return value.expanduser().absolute()

    @field_validator("token")
    @classmethod
    def _long_enough(cls, value: SecretStr | None) -> SecretStr | None:
        """A cookie and a header must take it as it is."""
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
                raise ValueError(f"{part!r} has no user id behind the @")
        return value

    @model_validator(mode="after")
    def _renews_in_time(self) -> "Settings":
        if self.renew_seconds * 3 > self.lease_seconds:
            raise ValueError("lease_seconds must be at least three times renew_seconds")
        return self

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
        """Tokenized data sets, each made once and used by page and run alike."""
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
        """Where the embedded broker listens: the data folder, or a private temporary one where that path is too long.

        Raises:
            SettingsError: the temporary folder belongs to somebody else.
        """
        path = self.data_dir / "broker.sock"
        if len(os.fsencode(path)) <= MAX_SOCKET_PATH:
            return path
        digest = hashlib.sha256(os.fsencode(self.data_dir)).hexdigest()[:12]
        return _private_folder(Path(tempfile.gettempdir()) / f"lathe-{os.getuid()}-{digest}") / "broker.sock"

    def make_folders(self) -> None:
        """Creates the data folder and what is in it, closed to other users.

        Raises:
            SettingsError: they cannot be made.
        """
        try:
            for folder in (self.data_dir, self.runs_dir, self.datasets_dir, self.uploads_dir):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            given = f"{PREFIX}DATA_DIR (given: {self.data_dir})"
            raise SettingsError(f"{given}: {error.strerror}. Give a folder you may write to.") from None


@lru_cache(maxsize=1)
def get_settings() -> Settings:
    """The settings of this process, read once.

    Raises:
        SettingsError: naming each variable that cannot be used.
    """
    try:
        return Settings()
    except ValidationError as error:
        lines = [_problem(list(detail["loc"]), detail["input"], detail["msg"]) for detail in error.errors()]
        raise SettingsError("\n".join(lines)) from None


def hub_token() -> str | None:
    """The model hub's token, as the training process finds it: LATHE_HUB_TOKEN, or HF_TOKEN. Never stored or told."""
    configured = get_settings().hub_token
    return (configured.get_secret_value() if configured else None) or os.environ.get("HF_TOKEN") or None


def _problem(place: list[int | str], value: object, message: str) -> str:
    if not place:
        return f"{PREFIX}LEASE_SECONDS: {message.removeprefix('Value error, ')}."
    name = str(place[0])
    given = "" if name in ("hub_token", "token") else f" (given: {value!r})"
    wanted = Settings.model_fields[name].description
    return f"{PREFIX}{name.upper()}{given}: {message[0].lower()}{message[1:]}. {wanted}"


def _private_folder(path: Path) -> Path:
    path.mkdir(mode=0o700, exist_ok=True)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise SettingsError(f"{path} is not yours alone. Delete it, or set {PREFIX}DATA_DIR to a shorter path.")
    return path
