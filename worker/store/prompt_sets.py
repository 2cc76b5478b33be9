"""Prompt sets in the database: prompts that a user keeps, and the latest answers of each model."""

import json
import logging
import secrets
from hashlib import sha256
from typing import Any

from sqlalchemy import Text, cast, func, literal
from sqlmodel import Session, col, select

from training.config import json_text
from training.config.task import traits_of
from training.errors import NotFound, UserError
from training.scoring.request import EvaluationRequest
from worker.store import accounts, database, quotas, runs, sight
from worker.store.tables import Evaluation, PromptSet, Run

log = logging.getLogger(__name__)

MOST_PROMPTS, MOST_SETS, MOST_MODELS = 200, 100, 40
MOST_CHARACTERS = 20_000
MOST_OF_SET, MOST_OF_ANSWERS, MOST_OF_OWNER = 400_000, 1_000_000, 8_000_000
"""Characters of the prompts of a set, of the answers of one model to them, and of all sets of an owner with their answers, which
lists read together."""
MOST_NAME = 120
KEYS, MODES = ("system", "user", "mode"), ("chat", "text")
"""What a prompt may have, and how it is sent."""

NAME = "prompt set "
"""The data of such an evaluation is named so, with the set's name."""


class PromptSetNotFound(NotFound):
    """No prompt set has this id."""


class BadPromptSet(UserError):  # noqa: N818
    """A prompt set that cannot be kept."""


def get(*, session: Session, set_id: str) -> PromptSet:
    """One prompt set. Raises PromptSetNotFound if there is none."""
    missing = PromptSetNotFound("prompt set", set_id, "does not exist.", "The page Playground lists all prompt sets.")
    return database.existing(session, PromptSet, set_id, missing)


def listing(*, session: Session) -> list[PromptSet]:
    """All prompt sets, by name."""
    return list(session.exec(select(PromptSet).order_by(col(PromptSet.name), col(PromptSet.id))))


def save(*, session: Session, name: str, prompts: list[dict[str, str]], owner: str) -> PromptSet:
    """Keeps prompts under a name. A set of the same owner and name is replaced; the answers of kept prompts stay.

    Raises:
        BadPromptSet: it has no name, or no, too many or too long prompts, or the owner's sets become too long together.
    """
    name = name.strip()
    _check(name, prompts)
    own = PromptSet.owner == owner
    earlier = session.exec(select(PromptSet).where(own, PromptSet.name == name)).first()
    if earlier is None:
        if session.exec(select(func.count()).select_from(PromptSet).where(own)).one() >= MOST_SETS:
            fix = "Delete one first."
            raise BadPromptSet("prompt set", name, f"cannot be kept: you have {MOST_SETS} already.", fix)
        earlier = PromptSet(id=secrets.token_hex(6), owner=owner, name=name, created_at=database.now(session=session))
    same = earlier.prompts == prompts[: len(earlier.prompts)]
    earlier.answers = earlier.answers if same else {}
    earlier.prompts = prompts
    session.add(earlier)
    session.flush()
    _check_owner(session, owner)
    return earlier


def keep_answers(*, session: Session, set_id: str, model: str, answers: list[dict[str, Any]]) -> PromptSet:
    """Stores the answers of a model, in the order of the prompts, in place of its earlier ones.

    Raises:
        PromptSetNotFound: there is no such set.
        BadPromptSet: they are not as many as the prompts, or too long.
        DamagedRow: the earlier ones cannot be read.
    """
    found = get(session=session, set_id=set_id)
    found.require("prompts", "answers")
    if len(answers) != len(found.prompts):
        fix = "Send one answer for each prompt, in their order."
        raise BadPromptSet("answers", len(answers), f"the set has {len(found.prompts)} prompts.", fix)
    if (length := len(json.dumps(answers, ensure_ascii=False))) > MOST_OF_ANSWERS:
        message = f"have {length:,} characters; at most {MOST_OF_ANSWERS:,} are possible."
        raise BadPromptSet("answers", None, message, "Send shorter answers, or split the set.")
    kept = {name: values for name, values in found.answers.items() if name != model} | {model: answers}
    found.answers = dict(list(kept.items())[-MOST_MODELS:])
    session.add(found)
    session.flush()
    _check_owner(session, found.owner)
    return found


def ask_every_result(*, session: Session, set_id: str, every_result: bool) -> PromptSet:
    """Sets whether every new result is asked the set. Raises PromptSetNotFound if there is no such set."""
    found = get(session=session, set_id=set_id)
    found.every_result = every_result
    session.add(found)
    session.flush()
    return found


def of_every_result(*, session: Session) -> list[PromptSet]:
    """The sets that every new result is asked, by name."""
    return [one for one in listing(session=session) if one.every_result]


def ask_new_result(*, session: Session, run: Run) -> None:
    """Queues an evaluation of a finished run for each set whose owner sees the run and may have more waiting work; none if its
    model generates no text."""
    if not traits_of(run.config).generates:
        return
    for found in filter(lambda one: _sees(session, one.owner, run.id), of_every_result(session=session)):
        if quotas.waiting_problem(session=session, owner=found.owner, more=1):
            log.warning("%s is not asked of run %s: %s may have no more waiting work", found.id, run.id, found.owner)
            continue
        digest = sha256(json.dumps(found.prompts, sort_keys=True).encode()).hexdigest()
        asked = {
            "name": NAME + found.name,
            "sha256": digest,
            "prompt_set": found.id,
            "prompts": found.prompts,
            "metrics": (),
        }
        request = EvaluationRequest.model_validate(asked).model_dump(mode="json")
        now = database.now(session=session)
        session.add(Evaluation(id=runs.new_id(now), run_id=run.id, owner=found.owner, request=request, created_at=now))
    session.flush()


def delete(*, session: Session, set_id: str) -> None:
    """Deletes a set with its answers. Raises PromptSetNotFound if there is no such set."""
    session.delete(get(session=session, set_id=set_id))


def _check(name: str, prompts: list[dict[str, str]]) -> None:
    if not name or len(name) > MOST_NAME or "\0" in name:
        message = f"must have 1 to {MOST_NAME} characters, none of them NUL."
        raise BadPromptSet("name", name[:50], message, "Give the set another name.")
    if not 1 <= len(prompts) <= MOST_PROMPTS:
        fix = "Add a prompt, or split the set."
        raise BadPromptSet("prompts", len(prompts), f"a set keeps 1 to {MOST_PROMPTS} prompts.", fix)
    if (length := sum(len(text) for prompt in prompts for text in prompt.values())) > MOST_OF_SET:
        message = f"have {length:,} characters together; at most {MOST_OF_SET:,} are possible."
        raise BadPromptSet("prompts", None, message, "Split the set.")
    for number, prompt in enumerate(prompts, 1):
        _check_prompt(f"prompts.{number}", prompt)


def _check_owner(session: Session, owner: str) -> None:
    """Checks the length of all sets of an owner. Raises BadPromptSet if they are too long; the caller then commits nothing."""
    lengths = (func.length(cast(column, Text)) for column in (col(PromptSet.prompts), col(PromptSet.answers)))
    length = session.exec(select(func.sum(sum(lengths, literal(0)))).where(PromptSet.owner == owner)).one() or 0
    if length > MOST_OF_OWNER:
        most = f"at most {MOST_OF_OWNER:,} are possible"
        message = f"would make {length:,} characters of all sets of {owner} with their answers; {most}."
        raise BadPromptSet("prompt set", None, message, "Delete a set first.")


def _check_prompt(place: str, prompt: dict[str, str]) -> None:
    if unknown := next((key for key in prompt if key not in KEYS), None):
        raise BadPromptSet(f"{place}.{unknown}", prompt[unknown][:50], "is unknown.", f"Use {', '.join(KEYS)}.")
    if (mode := prompt.get("mode", MODES[0])) not in MODES:
        raise BadPromptSet(f"{place}.mode", mode[:50], "is unknown.", f"Use {' or '.join(MODES)}.")
    for key, value in prompt.items():
        if "\0" in value:
            raise BadPromptSet(f"{place}.{key}", value[:50], json_text.HAS_NUL, json_text.REMOVE_NUL)
    if not prompt.get("user") or sum(map(len, prompt.values())) > MOST_CHARACTERS:
        message = f"must have 1 to {MOST_CHARACTERS:,} characters."
        raise BadPromptSet(place, None, message, "Change it, or leave it out.")


def _sees(session: Session, user: str, run_id: str) -> bool:
    """True if the user sees the run, and thus may keep its answers."""
    with sight.seen_by(accounts.view_of(session=session, name=user)), database.read() as own:
        return bool(sight.visible(own, [run_id]))
