"""A server that speaks as much of OpenAI's API as the benchmark of peers asks for: `python fake_peer.py PORT`.

Each character of a prompt is a token, and each token of an answer the letter x. After a streamed answer it closes the
connection, of which its headers do not say a word, as llama.cpp's does.
"""

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        assert self.path == "/metrics"
        held = "# TYPE turnpike_class_kv_blocks_held gauge", 'turnpike_class_kv_blocks_held{a="b c"} 100.0'
        cached = 'turnpike_class_kv_blocks_cached{a="b"} 150.0', 'turnpike_class_kv_blocks_cached{a="c"} 50.0'
        self._send("text/plain", ["\n".join((*held, *cached, "turnpike_class_kv_blocks_held_else 7.0")).encode()])

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        assert asked["ignore_eos"]
        sys.stdout.write(f"{asked['model']}\n")
        sys.stdout.flush()
        assert self.headers.get("authorization") in (None, "Bearer secret")
        usage = {
            "prompt_tokens": sum(len(message["content"]) for message in asked["messages"]),
            "completion_tokens": asked["max_tokens"],
        }
        if not asked.get("stream"):
            self._send("application/json", [json.dumps({"usage": usage}).encode()])
            return
        assert asked["temperature"] == 0
        chunk = json.dumps({"choices": [{"delta": {"content": "x"}}]})
        last = json.dumps({"choices": [], "usage": usage})
        events = [*[chunk] * asked["max_tokens"], last, "[DONE]"]
        self._send("text/event-stream", [f"data: {event}\n\n".encode() for event in events])
        self.close_connection = True

    def _send(self, kind: str, pieces: list[bytes]) -> None:
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(sum(map(len, pieces))))
        self.end_headers()
        for piece in pieces:
            self.wfile.write(piece)
            self.wfile.flush()

    def log_message(self, format: str, *arguments: object) -> None:
        """Nothing."""


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
