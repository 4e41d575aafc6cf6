import base64
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import numpy as np
import pytest

from closecall import endpoint as module
from closecall.endpoint import EndpointConfig, EndpointEncoder
from closecall.errors import ConfigError, ModelError
from closecall.vectors import VectorStore

WIDTH = 4


def vector(text):
    """Not of unit length."""
    return (np.random.default_rng(len(text)).normal(size=WIDTH) + 2).round(4).tolist()


def good(body):
    data = [{"index": at, "embedding": vector(text)} for at, text in enumerate(body["input"])]
    return 200, {"data": data[::-1], "usage": {"total_tokens": 10 * len(data)}}


@pytest.fixture
def service():
    """A local service: `answers` are called in turn with the request, the last one for ever; `seen` are requests."""
    state = SimpleNamespace(answers=[good], seen=[], headers={})

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            state.seen.append((self.path, body, dict(self.headers)))
            answer = state.answers.pop(0) if len(state.answers) > 1 else state.answers[0]
            status, content = answer(body)
            raw = content if isinstance(content, bytes) else json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(raw)))
            if status in (429, 503):
                self.send_header("Retry-After", "0")
            self.end_headers()
            self.wfile.write(raw)

        def log_message(self, *arguments):
            """Nothing on stderr."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    state.url = f"http://127.0.0.1:{server.server_port}/v1"
    yield state
    server.shutdown()
    server.server_close()


def encoder(service, **settings):
    return EndpointEncoder(EndpointConfig(url=service.url, model="m", **settings))


def expected(texts):
    found = np.asarray([vector(text) for text in texts])
    return found / np.linalg.norm(found, axis=1, keepdims=True)


TEXTS = ["a", "bb", "ccc", "dddd", "eeeee"]


def test_vectors_come_in_the_order_of_the_texts_as_unit_rows_whatever_the_order_of_the_answer(service):
    found = encoder(service, batch_size=2).encode(TEXTS, "document")
    np.testing.assert_allclose(found, expected(TEXTS), atol=1e-6)
    assert found.dtype == np.float32
    assert [body["input"] for _, body, _ in service.seen] == [["a", "bb"], ["ccc", "dddd"], ["eeeee"]]
    assert {path for path, *_ in service.seen} == {"/v1/embeddings"}


def test_prompts_and_dimensions_are_sent(service):
    found = encoder(service, query_prompt="query: ", document_prompt="passage: ", dimensions=WIDTH)
    found.encode(["x"], "query")
    found.encode(["x"], "document")
    assert [body["input"] for _, body, _ in service.seen] == [["query: x"], ["passage: x"]]
    assert service.seen[0][1]["dimensions"] == WIDTH


def test_errors_that_pass_are_asked_again(service):
    service.answers = [lambda _: (429, {}), lambda _: (503, {}), good]
    np.testing.assert_allclose(encoder(service).encode(["a"], "query"), expected(["a"]), atol=1e-6)
    assert len(service.seen) == 3


def test_base64_is_read(service):
    raw = base64.b64encode(np.asarray([3, 4, 0, 0], dtype="<f4").tobytes()).decode()
    service.answers = [lambda _: (200, {"data": [{"index": 0, "embedding": raw}]})]
    np.testing.assert_allclose(encoder(service).encode(["a"], "query"), [[0.6, 0.8, 0, 0]], atol=1e-6)


def of(*embeddings, **more):
    return lambda _: (200, {"data": [{"index": at, "embedding": e} for at, e in enumerate(embeddings)], **more})


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (
            lambda _: (401, {"error": "secret-key is wrong"}),
            r"refused the key \(status 401\); check the variable .*\(KEY\)",
        ),
        (lambda _: (404, b"not here"), r"refused the request \(status 404\): not here"),
        (lambda _: (400, b"key secret-key " + b"x" * 500), r"refused the request \(status 400\): key \*\*\* x"),
        (lambda _: (429, {}), r"still had status 429 after 1 retries"),
        (lambda _: (200, b"<html>"), "no JSON"),
        (lambda _: (200, []), "without `data`"),
        (of([1, 0, 0, 0]), "gave 1 vectors for 2 texts"),
        (lambda _: (200, {}), "gave no vectors for 2 texts"),
        (of([1, 0, 0, 0], [1, 0]), "of different lengths"),
        (of([1, 0, 0, 0], [float("nan"), 0, 0, 0]), "zero or not finite"),
        (of([1, 0, 0, 0], [0, 0, 0, 0]), "zero or not finite"),
        (of([], []), "of different lengths"),
        (lambda _: (200, {"data": [{"index": 0, "embedding": [1]}] * 2}), "numbered its vectors wrongly"),
    ],
)
def test_what_a_service_does_wrong_is_named_and_never_with_the_key(service, monkeypatch, answer, message):
    monkeypatch.setenv("KEY", "secret-key")
    service.answers = [answer]
    with pytest.raises(ModelError, match=message) as caught:
        encoder(service, api_key_env="KEY", retries=1).encode(["a", "bb"], "query")
    assert "secret-key" not in str(caught.value)
    assert str(caught.value).startswith(f"{service.url}/embeddings: m ")
    assert len(str(caught.value)) < 400
    assert service.seen[0][2]["Authorization"] == "Bearer secret-key"


def test_vectors_of_another_size_than_before_are_refused(service):
    found = encoder(service)
    found.encode(["a"], "query")
    service.answers = [of([1, 0])]
    with pytest.raises(ModelError, match="2 dimensions after 4"):
        found.encode(["a"], "query")


def test_a_service_that_is_not_there_is_named():
    dead = EndpointEncoder(EndpointConfig(url="http://127.0.0.1:9", model="m", retries=0))
    with pytest.raises(ModelError, match=r"127\.0\.0\.1:9/embeddings: m cannot be reached"):
        dead.encode(["a"], "query")


def test_a_key_that_is_not_set_is_a_fault_of_the_config(service, monkeypatch):
    monkeypatch.delenv("KEY", raising=False)
    with pytest.raises(ConfigError, match="environment variable KEY is not set"):
        encoder(service, api_key_env="KEY").encode(["a"], "query")
    assert service.seen == []


def test_tokens_and_cost_are_counted(service):
    found = encoder(service, batch_size=2, price_per_million_tokens=2.0)
    found.encode(TEXTS, "document")
    assert (found.requests, found.tokens, found.cost) == (3, 50, pytest.approx(1e-4))
    assert encoder(service).cost is None


def test_no_more_requests_are_sent_than_the_limit_allows(service, monkeypatch):
    clock, slept = SimpleNamespace(now=0.0), []

    def sleep(seconds):
        slept.append(seconds)
        clock.now += seconds

    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock.now, sleep=sleep))
    encoder(service, batch_size=1, requests_per_minute=30).encode(TEXTS, "query")
    assert slept == [pytest.approx(2.0)] * 4


def test_vectors_are_kept_and_the_service_is_asked_once(service, tmp_path):
    first = VectorStore(tmp_path).get(encoder(service), TEXTS, "query", "texts")
    asked = len(service.seen)
    again = VectorStore(tmp_path).get(encoder(service), TEXTS, "query", "texts")
    assert (again == first).all()
    assert len(service.seen) == asked + 1  # to learn the dimension


def test_the_fingerprint_is_that_of_model_and_prompts_not_of_the_key(service):
    one = encoder(service).fingerprint
    assert one == encoder(service, api_key_env="KEY", batch_size=1, retries=0).fingerprint
    assert one != encoder(service, query_prompt="q: ").fingerprint
    assert one != EndpointEncoder(EndpointConfig(url=service.url, model="other")).fingerprint


def test_no_text_needs_no_request_once_the_dimension_is_known(service):
    found = encoder(service)
    assert found.encode([], "query").shape == (0, WIDTH)
    asked = len(service.seen)
    assert found.encode([], "query").shape == (0, WIDTH)
    assert len(service.seen) == asked
