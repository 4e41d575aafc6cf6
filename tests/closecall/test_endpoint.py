import base64
import json
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from closecall import endpoint as module
from closecall.config import validate
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


@pytest.fixture(autouse=True)
def pauses(monkeypatch):
    """The pauses in seconds between retries, which are not slept."""
    found = []
    monkeypatch.setattr("urllib3.util.retry.time", SimpleNamespace(sleep=found.append, time=time.time))
    return found


@pytest.fixture
def service():
    """A local service: `answers` are called in turn with the request, the last one for ever; `seen` are requests."""
    state = SimpleNamespace(answers=[good], seen=[], retry_after="0")

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            state.seen.append((self.path, body, dict(self.headers)))
            answer = state.answers.pop(0) if len(state.answers) > 1 else state.answers[0]
            status, content = answer(body)
            raw = content if isinstance(content, bytes) else json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(raw)))
            if status == 429:
                self.send_header("Retry-After", state.retry_after)
            self.end_headers()
            self.wfile.write(raw)

        def log_message(self, *arguments):
            """Nothing on stderr."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.005,), daemon=True).start()
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


@pytest.mark.parametrize("statuses", [(429, 503), (408, 409, 500, 502, 504)])
def test_errors_that_pass_are_asked_again(service, statuses):
    service.answers = [*((lambda _, status=status: (status, {})) for status in statuses), good]
    found = encoder(service)
    np.testing.assert_allclose(found.encode(["a"], "query"), expected(["a"]), atol=1e-6)
    assert len(service.seen) == len(statuses) + 1
    assert (found.requests, found.tokens) == (1, 10)


def test_the_pause_before_a_retry_is_what_the_service_asks_for(service, pauses):
    service.retry_after, service.answers = "7", [lambda _: (429, {}), good]
    encoder(service).encode(["a"], "query")
    assert pauses == [7]


def test_the_pause_grows_when_the_service_asks_for_none(service, pauses):
    service.answers = [*[lambda _: (500, {})] * 3, good]
    encoder(service).encode(["a"], "query")
    assert pauses == [1.0, 2.0]  # 0.5 * 2**1, 0.5 * 2**2; the first retry goes at once


def base64_of(*numbers):
    return base64.b64encode(np.asarray(numbers, dtype="<f4").tobytes()).decode()


def test_base64_is_read(service):
    service.answers = [of(base64_of(3, 4, 0, 0))]
    np.testing.assert_allclose(encoder(service).encode(["a"], "query"), [[0.6, 0.8, 0, 0]], atol=1e-6)


def test_very_large_and_very_small_vectors_are_unit_rows_too(service):
    service.answers = [of([3e200, 4e200], [3e-200, 4e-200])]
    np.testing.assert_allclose(encoder(service).encode(["a", "bb"], "query"), [[0.6, 0.8]] * 2, atol=1e-6)


def of(*embeddings, **more):
    return lambda _: (200, {"data": [{"index": at, "embedding": e} for at, e in enumerate(embeddings)], **more})


def numbered(*indexes):
    return lambda _: (200, {"data": [{"index": index, "embedding": [1]} for index in indexes]})


KEY = "secret-key"


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda _: (401, {"error": KEY}), r"refused the key \(status 401\); check the variable of api_key_env \(KEY\)"),
        (lambda _: (403, b"no"), r"refused the key \(status 403\)"),
        (lambda _: (404, b"not here"), r"refused the request \(status 404\): not here; is the url right, and does"),
        (
            lambda _: (400, {"error": {"message": f"{KEY} is\nfine"}}),
            r"\(status 400\): \*\*\* is fine; check model, dim",
        ),
        (lambda _: (422, {"detail": "too long"}), r"\(status 422\): too long; check"),
        (lambda _: (400, b"x" * 190 + KEY.encode() + b"y" * 500), r"\(status 400\): x{190}\*\*\*y{7}; check"),
        (lambda _: (413, b""), r"\(status 413\): without a word; lower batch_size"),
        (lambda _: (429, {}), r"still had status 429 after 1 retries; wait"),
        (lambda _: (200, b"<html>"), "no JSON object; is the url"),
        (lambda _: (200, []), "no JSON object; is the url"),
        (of([1, 0, 0, 0]), "gave 1 vectors for 2 texts"),
        (of([1], [1], [1]), "gave 3 vectors for 2 texts"),
        (lambda _: (200, {}), "gave no vectors for 2 texts"),
        (of([1, 0, 0, 0], [1, 0]), "of different lengths"),
        (of([1, 0], [float("nan"), 0]), "gave 1 vectors that are zero or not finite, the first for 'bb'"),
        (of([1, 0], [None, 0]), "zero or not finite"),
        (of([1, 0], [0, float("inf")]), "zero or not finite"),
        (of(base64_of(float("nan")), base64_of(1)), "zero or not finite"),
        (of([0, 0], [0, 0]), "gave 2 vectors that are zero or not finite, the first for 'a'"),
        *((of(one, one), "no list of numbers") for one in ([], [[1]], "%%", "AAAA", {"a": 1}, None, [10**400])),
        (numbered(0, 0), r"numbered its vectors wrongly \(found index 0\); expected 0 to 1 once each"),
        (numbered(0, 2), r"found index 2\)"),
        (numbered(-1, 0), r"found index -1\)"),
        (numbered(0, "1"), r"found index 1\)"),
        (lambda _: (200, {"data": [{"embedding": [1]}] * 2}), r"found index None\)"),
        (lambda _: (200, {"data": [[1], [1]]}), r"found index None\)"),
    ],
)
def test_what_a_service_does_wrong_is_named_and_never_with_the_key(service, monkeypatch, answer, message):
    monkeypatch.setenv("KEY", KEY)
    service.answers = [answer]
    with pytest.raises(ModelError, match=message) as caught:
        encoder(service, api_key_env="KEY", retries=1).encode(["a", "bb"], "query")
    assert KEY not in str(caught.value)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(f"{service.url}/embeddings: m ")
    assert len(str(caught.value)) < 400
    assert service.seen[0][2]["Authorization"] == "Bearer secret-key"


def test_vectors_of_another_size_than_before_are_refused(service):
    found = encoder(service)
    found.encode(["a"], "query")
    service.answers = [of([1, 0])]
    with pytest.raises(ModelError, match="2 dimensions after 4"):
        found.encode(["a"], "query")


def test_a_service_that_ignores_dimensions_is_refused(service):
    with pytest.raises(ModelError, match="4 dimensions, not the 3 of `dimensions`; leave that out"):
        encoder(service, dimensions=3).encode(["a"], "query")


@pytest.mark.parametrize("retries", [0, 1])
def test_a_service_that_is_not_there_is_named(retries):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    dead = EndpointEncoder(EndpointConfig(url=f"http://127.0.0.1:{port}", model="m", retries=retries))
    message = (
        rf"^http://127\.0\.0\.1:{port}/embeddings: m cannot be reached \(connection refused\); is the service running"
    )
    with pytest.raises(ModelError, match=message):
        dead.encode(["a"], "query")


@pytest.mark.parametrize("retries", [0, 1])
def test_a_service_that_is_too_slow_is_told_from_one_that_is_not_there(retries):
    """The server takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/v1"
        slow = EndpointEncoder(EndpointConfig(url=url, model="m", retries=retries, timeout_s=0.05))
        with pytest.raises(ModelError, match=r"m gave no answer in 0\.05 s; raise timeout_s or lower batch_size"):
            slow.encode(["a"], "query")


@pytest.mark.parametrize("key", [None, "", " "])
def test_a_key_that_is_not_set_or_empty_is_a_fault_of_the_config(service, monkeypatch, key):
    monkeypatch.delenv("KEY", raising=False)
    if key is not None:
        monkeypatch.setenv("KEY", key)
    with pytest.raises(ConfigError, match="environment variable KEY is not set"):
        encoder(service, api_key_env="KEY").encode(["a"], "query")
    assert service.seen == []


def test_a_key_that_no_header_may_hold_is_refused_without_being_shown(service, monkeypatch):
    monkeypatch.setenv("KEY", "secret\nkey")
    with pytest.raises(ConfigError, match="KEY holds characters that no header may have") as caught:
        encoder(service, api_key_env="KEY").encode(["a"], "query")
    assert "secret" not in str(caught.value)


def test_a_service_that_wants_a_key_says_where_to_name_it(service):
    service.answers = [lambda _: (401, {})]
    with pytest.raises(ModelError, match=r"wants a key \(status 401\); name the environment variable"):
        encoder(service).encode(["a"], "query")


def test_the_key_goes_before_the_one_in_netrc(service, monkeypatch, tmp_path):
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login me password other\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("KEY", KEY)
    encoder(service, api_key_env="KEY").encode(["a"], "query")
    assert service.seen[0][2]["Authorization"] == f"Bearer {KEY}"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"url": "http://me:secret-key@host/v1"}, "url: a name or password stands in it"),
        ({"api_key_env": "secret-key"}, "api_key_env: no name of an environment variable; give the name of"),
    ],
)
def test_a_secret_in_the_config_is_refused_without_being_shown(settings, message):
    with pytest.raises(ConfigError, match=message) as caught:
        validate(EndpointConfig, {"url": "http://host/v1", "model": "m"} | settings, Path("x.yaml"))
    assert KEY not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://host:8000/v1", "http://host:8000/v1/embeddings"),
        ("http://host/v1/", "http://host/v1/embeddings"),
        ("http://host/v1/embeddings", "http://host/v1/embeddings"),
        ("http://host", "http://host/embeddings"),
        ("https://host/m?api-version=2", "https://host/m/embeddings?api-version=2"),
    ],
)
def test_embeddings_is_added_to_the_url_unless_it_is_there(url, address):
    assert EndpointConfig(url=url, model="m").address == address


def test_what_is_not_known_of_the_service_is_said_to_be_so(service):
    found = encoder(service, query_prompt="find me ")
    assert (found.weights_sha256, found.max_length_tokens) == ("", 0)
    assert f"http://{found.device}/v1" == service.url
    assert found.token_counts(["one two", ""], "query").tolist() == [2 + 2, 2]
    assert found.token_counts(["one two", ""], "document").tolist() == [2, 0]
    assert service.seen == []


def test_tokens_and_cost_are_counted(service):
    found = encoder(service, batch_size=2, price_per_million_tokens=2.0)
    found.encode(TEXTS, "document")
    assert (found.requests, found.tokens, found.cost) == (3, 50, pytest.approx(1e-4))
    assert encoder(service).cost is None


@pytest.mark.parametrize(
    ("usage", "tokens"),
    [({"prompt_tokens": 7}, 7), ({"prompt_tokens": 7, "total_tokens": 9}, 9), ({"total_tokens": "x"}, 0), ("x", 0)],
)
def test_tokens_are_those_that_the_service_states(service, usage, tokens):
    service.answers = [of([1], usage=usage)]
    found = encoder(service)
    found.encode(["a"], "query")
    assert found.tokens == tokens


def test_tokens_of_a_refused_answer_are_counted(service):
    service.answers = [of([0], usage={"total_tokens": 7})]
    found = encoder(service)
    with pytest.raises(ModelError, match="zero"):
        found.encode(["a"], "query")
    assert (found.requests, found.tokens) == (1, 7)


@pytest.fixture
def slept(monkeypatch):
    """The seconds slept for the rate limit, on a clock that only sleeping moves."""
    clock, found = SimpleNamespace(now=0.0), []

    def sleep(seconds):
        found.append(seconds)
        clock.now += seconds

    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock.now, sleep=sleep))
    return found


def test_no_more_requests_are_sent_than_the_limit_allows(service, slept):
    encoder(service, batch_size=1, requests_per_minute=30).encode(TEXTS, "query")
    assert slept == [pytest.approx(2.0)] * 4


def test_a_retry_counts_against_the_limit(service, slept):
    service.answers = [lambda _: (429, {}), good]
    encoder(service, batch_size=1, requests_per_minute=30).encode(["a", "bb"], "query")
    assert slept == [pytest.approx(4.0)]


def test_without_a_limit_nothing_waits(service, slept):
    encoder(service, batch_size=1).encode(TEXTS, "query")
    assert slept == []


def test_a_second_get_of_kept_vectors_asks_nothing(service, tmp_path):
    store, found = VectorStore(tmp_path), encoder(service)
    first, asked = store.get(found, TEXTS, "query", "texts"), len(service.seen)
    assert (store.get(found, TEXTS, "query", "texts") == first).all()
    assert len(service.seen) == asked


def test_another_process_asks_nothing_when_all_vectors_are_kept(service, tmp_path):
    first = VectorStore(tmp_path).get(encoder(service), TEXTS, "query", "texts")
    service.seen.clear()
    again = VectorStore(tmp_path).get(encoder(service), TEXTS, "query", "texts")
    assert (again == first).all()
    assert service.seen == []


def test_a_fingerprint_needs_no_key_and_no_request(service, monkeypatch):
    monkeypatch.delenv("KEY", raising=False)
    assert encoder(service, api_key_env="KEY").fingerprint
    assert service.seen == []


def test_the_fingerprint_is_that_of_model_and_prompts_not_of_the_key(service):
    one = encoder(service).fingerprint
    assert one == encoder(service, api_key_env="KEY", batch_size=1, retries=0).fingerprint
    for settings in ({"query_prompt": "q: "}, {"document_prompt": "q: "}, {"dimensions": 3}):
        assert one != encoder(service, **settings).fingerprint
    assert one != EndpointEncoder(EndpointConfig(url=f"{service.url}/2", model="m")).fingerprint
    assert one != EndpointEncoder(EndpointConfig(url=service.url, model="other")).fingerprint


def test_no_text_needs_no_request_once_the_dimension_is_known(service):
    found = encoder(service)
    assert found.encode([], "query").shape == (0, WIDTH)
    asked = len(service.seen)
    assert found.encode([], "query").shape == (0, WIDTH)
    assert len(service.seen) == asked
