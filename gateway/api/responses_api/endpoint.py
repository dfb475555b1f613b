"""POST /v1/responses."""

from gateway.api.endpoint import Asked, Operation
from gateway.api.fields import Fields
from gateway.api.responses_api.ids import PREFIX
from gateway.api.responses_api.schema import parse_response
from gateway.api.responses_api.turn import ResponseTurn


def _parse(fields: Fields) -> Asked:
    request, stated = parse_response(fields)
    turn = ResponseTurn(request, stated)
    return Asked(request, turn.wire, turn)


RESPONSES = Operation("chat", PREFIX, _parse)
