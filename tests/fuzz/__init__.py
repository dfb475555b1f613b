"""Hostile requests against the whole server, during streams that must not notice: `python -m tests.fuzz --help`.

`bodies` are valid requests and `mutation` spoils them; `wire` sends them over sockets, `serving` runs the server with
the real engine on a tiny model and knows what may not be left over, and `campaign` puts them together and judges.
"""
