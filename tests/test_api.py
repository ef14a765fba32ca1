"""The endpoint client against a server that answers as badly as servers do."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from dsv41.api import Endpoint
from dsv41.errors import EngineFailed, Unreachable, UsageError

ANSWERS = {
    "/ready": (503, b""),
    "/v1/models": (200, b'{"data": [{"id": "m"}]}'),
    "/flat/v1/chat/completions": (
        400,
        b'{"object": "error", "message": "flat words", "code": 400}',
    ),
    "/nested/v1/chat/completions": (400, b'{"error": {"message": "nested words"}}'),
    "/html/v1/chat/completions": (502, b"<html>bad gateway</html>"),
    "/cut/v1/chat/completions": (200, b': keepalive\n\ndata: {"choices": [1]}\n\n'),
    "/whole/v1/chat/completions": (200, b'data: {"choices": [1]}\n\ndata: [DONE]\n\n'),
    "/dies/v1/chat/completions": (200, b'data: {"error": {"message": "rank 2 is gone"}}\n\n'),
}


class Handler(BaseHTTPRequestHandler):
    def answer(self) -> None:
        length = int(self.headers.get("Content-Length", 0))
        self.rfile.read(length)
        status, body = ANSWERS.get(self.path, (404, b"{}"))
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = answer  # noqa: N815 - the names that http.server calls

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its signature
        pass


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_plain_requests(url: str) -> None:
    endpoint = Endpoint(url=url + "/v1")
    assert endpoint.status("/ready") == 503
    assert endpoint.models() == [{"id": "m"}]


@pytest.mark.parametrize(
    ("place", "words"),
    [("flat", "flat words"), ("nested", "nested words"), ("html", "bad gateway"), ("none", "404")],
)
def test_an_error_carries_the_servers_words(url: str, place: str, words: str) -> None:
    with pytest.raises(EngineFailed, match=words) as caught:
        Endpoint(url=f"{url}/{place}").chat(messages=[])
    assert caught.value.code == "D111"


def test_streams(url: str) -> None:
    assert list(Endpoint(url=f"{url}/whole").stream(messages=[])) == [{"choices": [1]}]
    with pytest.raises(EngineFailed, match=r"without \[DONE\]"):
        list(Endpoint(url=f"{url}/cut").stream(messages=[]))
    with pytest.raises(EngineFailed, match="rank 2 is gone"):
        list(Endpoint(url=f"{url}/dies").stream(messages=[]))


def test_nobody_there() -> None:
    endpoint = Endpoint(url="http://127.0.0.1:9/v1")
    assert endpoint.status("/ready") is None
    with pytest.raises(Unreachable) as caught:
        endpoint.chat(messages=[])
    assert (caught.value.code, caught.value.exit_status) == ("D113", 3)


@pytest.mark.parametrize("url", ["127.0.0.1:8888", "ftp://x", "http://"])
def test_not_a_url(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        Endpoint(url=url)
    assert caught.value.code == "D110"
