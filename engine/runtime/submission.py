"""From the prompts of a call to the requests of its choices, wherever these are computed."""

import hmac
import itertools
import secrets
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from engine.adapters.source import AdapterSource
from engine.errors import InvalidParameter, UnservableRequest
from engine.grammar.allowed import AllowedTokens
from engine.request import PromptInput, Request, SamplingParams, ServiceClass
from engine.runtime.engine_call import EngineCall
from engine.runtime.loaded_model import ServedModel
from engine.runtime.streams import Choice
from engine.text.detokenizer import Detokenizer
from kernels.noise import choice_seed


@dataclass(frozen=True, slots=True)
class Submission:
    """The choices of one prompt, as they are submitted to a model. `request_ids`, `seeds`: of each choice.

    `token_ids`: the prompt's `prompt_tokens`, and those that the answer of a single choice begins with. `max_tokens`
    bounds an answer with them. `salt` separates prefix caches.
    """

    request_ids: tuple[str, ...]
    seeds: tuple[int, ...]
    token_ids: Sequence[int]
    prompt_tokens: int
    params: SamplingParams
    max_tokens: int
    service_class: ServiceClass
    tenant: str
    salt: bytes
    adapter: AdapterSource | None = None


class Submitter:
    """Checks calls, and makes their submissions. Request ids differ in all calls of one submitter."""

    def __init__(self, salt_key: bytes | None) -> None:
        """`salt_key`: HMAC key of the salts of tenants; None: random."""
        self._salt_key = salt_key or secrets.token_bytes(32)
        self._numbers = itertools.count()

    def salt_of(self, tenant: str) -> bytes:
        """The salt of a tenant's prefix caches."""
        return hmac.digest(self._salt_key, tenant.encode(), "sha256")

    def submissions(self, served: ServedModel, call: EngineCall) -> list[Submission]:
        """One for each prompt.

        Raises:
            UnservableRequest, InvalidParameter: as `Engine.submit` has them.
        """
        if call.adapter is not None and not served.adapter_slots:
            raise UnservableRequest(f"{served.name} takes no adapters")
        salt = self.salt_of(call.tenant)
        return [self._submission(served, call, prompt, salt) for prompt in call.prompts]

    def _submission(self, served: ServedModel, call: EngineCall, prompt: PromptInput, salt: bytes) -> Submission:
        params = prompt.params
        max_tokens = _max_tokens(served, prompt.token_ids, params, call.service_class)
        seed = params.seed if params.seed is not None else secrets.randbits(63)
        name = prompt.request_id or uuid.uuid4().hex
        return Submission(
            request_ids=tuple([f"{name}#{next(self._numbers)}" for _ in range(params.n)]),  # callers may reuse ids
            seeds=tuple([choice_seed(seed, index) for index in range(params.n)]),
            token_ids=prompt.token_ids,
            prompt_tokens=len(prompt.token_ids),
            params=params,
            max_tokens=max_tokens,
            service_class=call.service_class,
            tenant=call.tenant,
            salt=salt,
            adapter=call.adapter,
        )


def choices_of(served: ServedModel, prompts: Sequence[PromptInput], submissions: Sequence[Submission]) -> list[Choice]:
    """The choices of a call, numbered from those of the first prompt on."""
    index = itertools.count()
    return [
        Choice(next(index), request_id, prompt.params, _detokenizer(served, prompt.params, prompt.continues_text))
        for prompt, submission in zip(prompts, submissions, strict=True)
        for request_id in submission.request_ids
    ]


def requests_of(served: ServedModel, submission: Submission, arrivals: Iterator[int]) -> list[Request]:
    """One request for each choice, numbered by `arrivals`. All but the first are forks of the first one's prompt."""
    allowed = submission.params.allowed_token_ids
    requests: list[Request] = []
    for request_id, seed in zip(submission.request_ids, submission.seeds, strict=True):
        requests.append(
            Request(
                id=request_id,
                tokens=list(submission.token_ids),
                prompt_tokens=submission.prompt_tokens,
                params=submission.params,
                seed=seed,
                max_tokens=submission.max_tokens,
                eos_token_ids=served.eos_token_ids,
                arrival=next(arrivals),
                service_class=submission.service_class,
                tenant=submission.tenant,
                salt=submission.salt,
                fork_of=requests[0] if requests else None,
                matcher=None if allowed is None else AllowedTokens(allowed, served.vocab_size),
                adapter=submission.adapter,
            )
        )
    return requests


def _detokenizer(served: ServedModel, params: SamplingParams, continues_text: bool) -> Detokenizer:
    return served.text.detokenizer(
        params.stop,
        skip_special_tokens=params.skip_special_tokens,
        keep_markers=params.conversational,
        include_stop=params.include_stop,
        continues_text=continues_text,
    )


def _max_tokens(served: ServedModel, prompt: Sequence[int], params: SamplingParams, service_class: ServiceClass) -> int:
    """Maximum number of answer tokens. Checks the parameters that depend on the model."""
    window = served.windows.get(service_class.name)
    if window is None:
        raise UnservableRequest(f"service class {service_class.name!r} does not exist")
    if not prompt:
        raise UnservableRequest("the prompt must contain at least one token")
    for name, ids in (
        ("prompt", prompt),
        ("logit_bias", params.logit_bias),
        ("stop_token_ids", params.stop_token_ids),
        ("allowed_token_ids", params.allowed_token_ids or ()),
    ):
        if min(ids, default=0) < 0 or max(ids, default=0) >= served.vocab_size:
            raise InvalidParameter(
                name, f"{name} contains out-of-vocabulary token ids; vocabulary size: {served.vocab_size}"
            )
    if params.grammar is not None and not served.takes_grammars:
        raise InvalidParameter(params.grammar.param, f"{params.grammar.param} is not supported with {served.name}")
    if params.allowed_token_ids is not None:
        _check_allowed(served, params, params.allowed_token_ids)
    room = window - len(prompt)
    if room < min(1, 1 if params.max_tokens is None else params.max_tokens):
        raise UnservableRequest(
            f"this model's maximum context length is {window} tokens, but the prompt has {len(prompt)}; "
            "please reduce the length of the prompt"
        )
    return room if params.max_tokens is None else min(params.max_tokens, room)


def _check_allowed(served: ServedModel, params: SamplingParams, allowed: frozenset[int]) -> None:
    if not served.takes_grammars:
        raise InvalidParameter("allowed_token_ids", f"allowed_token_ids is not supported with {served.name}")
    if params.min_tokens and allowed <= {*params.stop_token_ids, *served.eos_token_ids}:
        raise InvalidParameter("min_tokens", "min_tokens must be 0 if allowed_token_ids has end and stop tokens only")
