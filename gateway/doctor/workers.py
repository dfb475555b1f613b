"""Checks the workers that compute models of the settings: where they are, their certificates, and what they serve."""

import asyncio
import ssl
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from engine.workers.frames import ConnectionEnded
from engine.workers.messages import Ready
from engine.workers.probe import probe
from engine.workers.remote_link import parse_address
from engine.workers.sources import Member, SourceFailed, parse_source
from gateway.config.settings import Settings
from gateway.doctor.finding import DEADLINE_S, Finding, failure, ok, warning
from gateway.errors import OperatorError
from gateway.process.engine_loading import worker_context

_MAX_NAMED = 5
_REMEDY = "start `turnpike worker` there, or correct [replicas] in turnpike.toml"


def workers(settings: Settings) -> Iterator[Finding]:
    """A finding for each model that workers compute."""
    if not settings.replicas:
        return
    try:
        context = worker_context(settings, settings.models)
    except OperatorError as error:
        yield failure("workers", str(error), "correct [replicas] or [worker_tls] in turnpike.toml")
        return
    for model, sources in settings.replicas.items():
        yield _examined(model, sources, context)


def _examined(model: str, sources: Sequence[str], context: ssl.SSLContext | None) -> Finding:
    what, members, unread = f"workers of {model}", set[Member](), []
    for source in sources:
        try:
            members |= parse_source(source).read()
        except SourceFailed as error:
            unread.append(str(error))
    exposed = [each.address for each in members if context is None and not parse_address(each.address).is_local]
    if exposed:
        return failure(what, f"{exposed[0]} is on another machine", "set [worker_tls]: without it, it is not used")
    answers = asyncio.run(_answers(sorted(members, key=lambda each: each.address), context))
    away = [f"{address}: {answer}" for address, answer in answers.items() if isinstance(answer, str)]
    ready = {address: answer for address, answer in answers.items() if isinstance(answer, Ready)}
    versions = _versions(model, ready)
    away += unread + [f"{address}: it does not serve {model}" for address in ready if address not in versions]
    if not versions:
        return failure(what, "; ".join(away[:_MAX_NAMED]) or "the fleet has none", _REMEDY)
    [(version, agreeing)] = Counter(versions.values()).most_common(1)
    others = [address for address, each in versions.items() if each != version]
    if others:
        detail = (
            f"{', '.join(others[:_MAX_NAMED])} has other files of the model than {agreeing} others: they do not mix"
        )
        return warning(what, detail, "give all workers the same files")
    if away:
        return warning(what, f"{agreeing} ready; {'; '.join(away[:_MAX_NAMED])}", _REMEDY)
    return ok(what, f"{agreeing} ready, {'TLS' if context is not None else 'on this machine'}")


def _versions(model: str, ready: Mapping[str, Ready]) -> dict[str, str]:
    """The model's version by the address of each worker that serves it."""
    return {
        address: facts.version for address, answer in ready.items() for facts in answer.models if facts.name == model
    }


async def _answers(members: Sequence[Member], context: ssl.SSLContext | None) -> dict[str, Ready | str]:
    """The greeting of each worker by address, or why there is none."""
    answers = await asyncio.gather(*(_answer(member, context) for member in members))
    return {member.address: answer for member, answer in zip(members, answers, strict=True)}


async def _answer(member: Member, context: ssl.SSLContext | None) -> Ready | str:
    try:
        return await probe(member, context, DEADLINE_S)
    except TimeoutError:
        return f"no answer within {DEADLINE_S:g} s"
    except ssl.SSLError as error:
        return f"TLS fails ({error.reason or error.strerror})"
    except OSError as error:
        return error.strerror or type(error).__name__
    except ConnectionEnded as error:
        return str(error)
    except msgspec.MsgspecError:
        return "what answers is no worker of this release"
