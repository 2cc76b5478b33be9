"""The rewards and servers that a user may use: code, and servers at other addresses, only the user who runs the server; and the key
of judges."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from urllib.parse import urlsplit

from training.config.run_config import RunConfig
from training.errors import Problem, UserError
from training.rewards.built_in import JUDGE
from training.rewards.judge import KEY_VARIABLE, URLS_VARIABLE, address
from training.rewards.own_functions import name_fault
from training.rewards.rewards import Reward, check_options, judge_urls
from worker.allowed_paths import CODE, CODE_FIX, AllowedPaths
from worker.settings import get_settings


def problems(rewards: Sequence[Reward], allowed: AllowedPaths, field: str) -> list[Problem]:
    """The problems of rewards that a user may not use, or whose options are wrong. `field` names them."""
    found: list[Problem] = []
    for reward in rewards:
        try:
            check_options(reward)
        except UserError as error:
            found.append(replace(error.problem, field=field))
            continue
        refused = judge_problem(reward.options["url"], trusted=allowed.data is None) if reward.kind == JUDGE else None
        found += [refused] if refused else []
    own = [reward.kind for reward in rewards if reward.own]
    if own and allowed.data is not None:
        found.append(Problem(field, ", ".join(own), CODE, CODE_FIX))
    return found


def file_problems(own: Mapping[str, str], rewards: Sequence[Reward]) -> list[Problem]:
    """The problems of files of code that are sent with rewards: no reward names one, or its name is not one of its own."""
    named = {reward.own[0] for reward in rewards if reward.own}
    unnamed = [
        Problem("own", file, "has code of no reward.", f"Leave it out, or name a function: {file}:FUNCTION.")
        for file in own
        if file not in named
    ]
    faults = ((file, name_fault(file)) for file in own if file in named)
    return unnamed + [Problem("own", file, fault, "Give the file another name.") for file, fault in faults if fault]


def judge_problem(url: str, *, trusted: bool) -> Problem | None:
    """Why a user may not use the judge at this address; None if they may.

    `trusted` users may use any address. Others may use those of LATHE_JUDGE_URLS, so that they cannot reach services of the
    server's network.
    """
    return _refused("judge_url", url, "a judge", "LATHE_JUDGE_URLS", allowed=trusted or _listed(url))


def sampler_of_run(config: RunConfig, allowed: AllowedPaths) -> Problem | None:
    """Why a user may not let the vLLM server at `vllm_url` draw a run's samples; None if they may, as for judges."""
    if not config.vllm_url:
        return None
    known = [_without_version(part.strip()) for part in get_settings().vllm_urls.split(",") if part.strip()]
    may = allowed.data is None or _without_version(config.vllm_url) in known
    return _refused("vllm_url", config.vllm_url, "a vLLM", "LATHE_VLLM_URLS", allowed=may)


def _without_version(url: str) -> str:
    return url.rstrip("/").removesuffix("/v1")


def _refused(field: str, url: str, what: str, variable: str, *, allowed: bool) -> Problem | None:
    if not _is_api(url):
        return Problem(field, url, "is not the address of an API.", "Give http://HOST:PORT/v1 or https://HOST/v1.")
    if allowed:
        return None
    return Problem(field, url, f"is not {what} of this server.", f"Ask who runs the server to add it to {variable}.")


def _is_api(url: str) -> bool:
    """True for an http or https address that a client can use, without a user, a password or a query."""
    import httpx  # takes half a second

    try:
        parts = urlsplit(url)
        parsed = httpx.URL(url)
        host = parsed.host  # a client decodes it, and a connection encodes it again
        parsed.raw_host.decode().encode("idna")
        has_port = parts.port != 0
    except (ValueError, httpx.InvalidURL):
        return False
    is_plain = url.isprintable() and not set(" \\") & set(url) and not re.search("[@%]", parts.netloc)
    return (
        parts.scheme in ("http", "https") and bool(host) and has_port and is_plain and not parts.query + parts.fragment
    )


def judges_of_run(config: RunConfig, allowed: AllowedPaths) -> list[Problem]:
    """The problems of the judges among a run's rewards that a user may not use."""
    urls = judge_urls(config.rewards) if config.task.traits.rewards_samples else []
    problems = (judge_problem(url, trusted=allowed.data is None) for url in urls)
    return [replace(problem, field="rewards") for problem in problems if problem]


def variables(config: RunConfig) -> dict[str, str]:
    """The environment from which the ranks of a run take the key of its judges; empty if none receives it."""
    urls = judge_urls(config.rewards) if config.task.traits.rewards_samples else []
    keys = {url: key for url in urls if (key := judge_key(url))}
    return {KEY_VARIABLE: next(iter(keys.values())), URLS_VARIABLE: "\n".join(keys)} if keys else {}


def judge_key(url: str) -> str | None:
    """The key for a judge: of LATHE_JUDGE_URLS, or of any without that variable, since only the server's user can then name one."""
    settings = get_settings()
    if settings.judge_key is None or (settings.judge_urls.strip() and not _listed(url)):
        return None
    return settings.judge_key.get_secret_value()


def _listed(url: str) -> bool:
    """True if the address is, or begins with, one of LATHE_JUDGE_URLS."""
    known = [address(part.strip()) for part in get_settings().judge_urls.split(",") if part.strip()]
    return address(url) in known
