"""POST /v1/responses."""

from gateway.formats.openai_responses.ids import PREFIX
from gateway.formats.openai_responses.schema import parse_response
from gateway.formats.openai_responses.turn import ResponseTurn
from gateway.generation.endpoint import Operation, ParsedBody
from gateway.http.fields import Fields


def _parse(fields: Fields) -> ParsedBody:
    request, stated = parse_response(fields)
    turn = ResponseTurn(request, stated)
    return ParsedBody(request, turn.formatter, turn)


RESPONSES = Operation("chat", PREFIX, _parse)
