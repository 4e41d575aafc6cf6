"""An OpenAI-compatible `/v1/embeddings` service as an Encoder: a hosted or self-served model beside local ones."""

from __future__ import annotations

import base64
import math
import os
import re
import time
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import numpy as np
import numpy.typing as npt
from pydantic import Field, field_validator

from closecall.config import Settings
from closecall.encoding import Role, Vectors
from closecall.errors import ConfigError, ModelError
from closecall.manifest import sha256_json

if TYPE_CHECKING:
    from requests import PreparedRequest, RequestException, Response, Session

PASSING = (408, 409, 429, 500, 502, 503, 504)
"""Statuses after which a request is sent again, later each time, or when the service's Retry-After says so."""
MESSAGE_CHARACTERS = 200
ADVICE = {404: "is the url right, and does the service have this model?", 413: "lower batch_size"}
OTHER_ADVICE = "check model, dimensions and the length of the texts"


class EndpointConfig(Settings):
    """A service, and how it is asked."""

    url: str = Field(pattern=r"^https?://\S+$", description="such as https://api.openai.com/v1")
    model: str = Field(min_length=1, description="name that the service knows it by")
    api_key_env: str | None = Field(None, description="environment variable that holds the key; the key stays there")
    dimensions: int | None = Field(None, ge=1, description="asked of the service; default: what it gives")
    query_prompt: str = Field("", description="put before each query")
    document_prompt: str = Field("", description="put before each document")
    batch_size: int = Field(64, ge=1, description="texts per request")
    requests_per_minute: float | None = Field(None, gt=0, description="no more are sent")
    timeout_s: float = Field(60.0, gt=0, description="for one answer")
    retries: int = Field(5, ge=0, description="after errors that pass: too many requests, no connection, overload")
    price_per_million_tokens: float | None = Field(None, ge=0, description="to count what was spent, in any currency")

    @field_validator("url")
    @classmethod
    def _no_password(cls, url: str) -> str:
        """The url; errors and reports show it, so it may hold no password."""
        if "@" in urlsplit(url).netloc:
            raise ValueError("a name or password stands in it; take it out and name the key's variable in api_key_env")
        return url

    @field_validator("api_key_env")
    @classmethod
    def _no_key(cls, name: str | None) -> str | None:
        """The name; most keys are none, and a key given by mistake must not be shown in an error."""
        if name is not None and not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
            raise ValueError("no name of an environment variable; give the name of the one that holds the key")
        return name

    @property
    def address(self) -> str:
        """Where requests go: the url, with /embeddings before its query unless there."""
        parts = urlsplit(self.url)
        return parts._replace(path=parts.path.rstrip("/").removesuffix("/embeddings") + "/embeddings").geturl()

    @property
    def interval_s(self) -> float:
        """Least time between two requests; 0 without a limit."""
        return 0.0 if self.requests_per_minute is None else 60 / self.requests_per_minute

    def prompt(self, role: Role) -> str:
        """What is put before each text of a role."""
        return self.query_prompt if role == "query" else self.document_prompt


class EndpointEncoder:
    """A service as an Encoder. Its weights are not known, so its vectors are kept under url, model and prompts.

    The key is read when the first request is sent: what asks only for the fingerprint needs none. `requests` counts
    those that were answered with success, `tokens` what the service says it read in them.
    """

    weights_sha256 = ""
    max_length_tokens = 0
    """The service does not say."""

    def __init__(self, config: EndpointConfig) -> None:
        self.config = config
        named = (config.address, config.model, config.dimensions, config.query_prompt, config.document_prompt)
        self.fingerprint = sha256_json(["endpoint", *named])
        self.requests, self.tokens = 0, 0
        self._next = -math.inf

    @cached_property
    def dimension(self) -> int:
        """Length of a vector; one short text is sent to learn it."""
        return int(self._ask(["dimension"]).shape[1])

    @property
    def device(self) -> str:
        """The host of the service, with the port if the url has one."""
        return urlsplit(self.config.url).netloc

    @property
    def cost(self) -> float | None:
        """What was spent by this object, in the currency of the price; None without a price."""
        price = self.config.price_per_million_tokens
        return None if price is None else self.tokens * price / 1e6

    def encode(self, texts: Sequence[str], role: Role) -> Vectors:
        """float32 (n_texts, dimension), unit rows; ModelError for whatever the service does wrong."""
        if not texts:
            return np.empty((0, self.dimension), dtype=np.float32)
        prompt, size = self.config.prompt(role), self.config.batch_size
        parts = [self._ask([prompt + text for text in texts[at : at + size]]) for at in range(0, len(texts), size)]
        return np.concatenate(parts)

    @property
    def description(self) -> str:
        """For people: the model and the service."""
        return f"{self.config.model} ({self.config.url})"

    def token_counts(self, texts: Sequence[str], role: Role) -> npt.NDArray[np.int64]:
        """int64 (n_texts,): words of each text with its prompt, an approximation: the service does not say."""
        return np.asarray([len((self.config.prompt(role) + text).split()) for text in texts], dtype=np.int64)

    def _ask(self, texts: Sequence[str]) -> Vectors:
        """The unit vectors of one request, in the order of the texts."""
        self._wait()
        body: dict[str, Any] = {"model": self.config.model, "input": list(texts), "encoding_format": "float"}
        if self.config.dimensions is not None:
            body["dimensions"] = self.config.dimensions
        answer = self._post(body)
        self.requests += 1
        self.tokens += _tokens(answer.get("usage"))  # before the vectors are checked: bad ones are paid for too
        vectors = self._vectors(answer.get("data"), texts)
        self._check_dimension(vectors.shape[1])
        return vectors

    def _check_dimension(self, found: int) -> None:
        asked = self.config.dimensions
        if asked is not None and found != asked:
            raise self._fault(f"gave vectors of {found} dimensions, not the {asked} of `dimensions`; leave that out")
        known = self.__dict__.setdefault("dimension", found)
        if found != known:
            raise self._fault(f"gave vectors of {found} dimensions after {known}; is it one model?")

    def _wait(self) -> None:
        """Sleep until the next request may be sent."""
        now = time.monotonic()
        if now < self._next:
            time.sleep(self._next - now)
        self._next = max(now, self._next) + self.config.interval_s

    @cached_property
    def _key(self) -> str:
        """The key; empty when no variable is named."""
        if (name := self.config.api_key_env) is None:
            return ""
        key = os.environ.get(name, "").strip()
        if not key:
            raise ConfigError(f"endpoint.api_key_env: the environment variable {name} is not set; export it")
        if not (key.isascii() and key.isprintable()):
            raise ConfigError(f"endpoint.api_key_env: {name} holds characters that no header may have; export it anew")
        return key

    def _authorize(self, request: PreparedRequest) -> PreparedRequest:
        """The request with the key; as `auth` of the session, since a ~/.netrc would overwrite a plain header."""
        request.headers["Authorization"] = f"Bearer {self._key}"
        return request

    @cached_property
    def _session(self) -> Session:
        import requests
        from urllib3.util import Retry

        session = requests.Session()
        count, any_method = self.config.retries, None  # POST too, which Retry would not send again by itself
        retry = Retry(
            count, allowed_methods=any_method, status_forcelist=PASSING, backoff_factor=0.5, raise_on_status=False
        )
        for scheme in ("http://", "https://"):
            session.mount(scheme, requests.adapters.HTTPAdapter(max_retries=retry))
        if self._key:
            session.auth = self._authorize
        return session

    def _post(self, body: dict[str, Any]) -> dict[str, Any]:
        """The JSON object that the service answers; ModelError when it gives none."""
        answer = self._sent(body)
        if not answer.ok:
            raise self._fault(self._refusal(answer))
        try:
            content = answer.json()
        except ValueError:
            content = None
        if not isinstance(content, dict):
            raise self._fault("gave an answer that is no JSON object; is the url that of an embeddings service?")
        return content

    def _sent(self, body: dict[str, Any]) -> Response:
        """The last answer after all retries, which count against requests_per_minute."""
        import requests

        try:
            answer = self._session.post(self.config.address, json=body, timeout=self.config.timeout_s)
        except requests.exceptions.RequestException as error:
            raise self._fault(_unreached(error, self.config)) from None
        self._next += self.config.interval_s * len(getattr(answer.raw.retries, "history", ()))
        return answer

    def _refusal(self, answer: Response) -> str:
        """What is wrong when the status is no success; never with the key."""
        status, name = answer.status_code, self.config.api_key_env
        if status in (401, 403) and name is None:
            return f"wants a key (status {status}); name the environment variable that holds it in api_key_env"
        if status in (401, 403):
            return f"refused the key (status {status}); check the variable of api_key_env ({name})"
        if status in PASSING:
            return f"still had status {status} after {self.config.retries} retries; wait, or lower requests_per_minute"
        said = " ".join(_message(answer).split())
        said = (said.replace(self._key, "***") if self._key else said)[:MESSAGE_CHARACTERS]
        return f"refused the request (status {status}): {said or 'without a word'}; {ADVICE.get(status, OTHER_ADVICE)}"

    def _vectors(self, data: object, texts: Sequence[str]) -> Vectors:
        """float32 (n_texts, dimension), unit rows in the order of the texts."""
        rows = [_floats(embedding) for embedding in self._in_order(data, len(texts))]
        if not all(row.size for row in rows):
            raise self._fault("gave a vector that is no list of numbers and no base64 of float32; update the service")
        if len({row.size for row in rows}) != 1:
            raise self._fault("gave vectors of different lengths; is it one model?")
        vectors = np.stack(rows)
        largest = np.abs(vectors).max(axis=1, keepdims=True)
        bad = np.flatnonzero(~((largest > 0) & np.isfinite(largest)))
        if bad.size:
            text = texts[int(bad[0])][:60]
            raise self._fault(f"gave {bad.size} vectors that are zero or not finite, the first for {text!r}; mend it")
        vectors /= largest  # else the squares of a very large or small vector leave the range of floats
        return np.ascontiguousarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), dtype=np.float32)

    def _in_order(self, data: object, count: int) -> list[object]:
        """The embeddings as they were sent, sorted by their index."""
        if not isinstance(data, list) or len(data) != count:
            found = len(data) if isinstance(data, list) else "no"
            raise self._fault(f"gave {found} vectors for {count} texts; lower batch_size, or ask another service")
        embeddings: dict[int, object] = {}
        for item in data:
            index = item.get("index") if isinstance(item, dict) else None
            if type(index) is not int or not 0 <= index < count or index in embeddings:
                what = f"numbered its vectors wrongly (found index {str(index)[:20]})"
                raise self._fault(f"{what}; expected 0 to {count - 1} once each, update the service")
            embeddings[index] = item.get("embedding")
        return [embeddings[index] for index in range(count)]

    def _fault(self, what: str) -> ModelError:
        return ModelError(f"{self.config.address}: {self.config.model} {what}")


def _unreached(error: RequestException, config: EndpointConfig) -> str:
    """Why there was no answer. After retries, `requests` reports a slow answer as a ConnectionError around it."""
    import requests
    from urllib3.exceptions import ReadTimeoutError

    outer = error.args[0] if error.args else None
    cause = getattr(outer, "reason", None) or outer
    if isinstance(error, requests.exceptions.Timeout) or isinstance(cause, ReadTimeoutError):
        return f"gave no answer in {config.timeout_s:g} s; raise timeout_s or lower batch_size"
    kind = "connection refused" if "refused" in str(cause) else type(error).__name__
    return f"cannot be reached ({kind}); is the service running, is the url right?"


def _message(answer: Response) -> str:
    """The service's own words: those of its JSON error, or the whole text."""
    try:
        content = answer.json()
    except ValueError:
        return answer.text
    error = content.get("error", content) if isinstance(content, dict) else content
    said = error.get("message", error.get("detail")) if isinstance(error, dict) else error
    return said if isinstance(said, str) else answer.text


def _tokens(usage: object) -> int:
    """The tokens of a request; 0 when the service does not say."""
    found = (usage.get("total_tokens") or usage.get("prompt_tokens")) if isinstance(usage, dict) else 0
    return found if isinstance(found, int) and found > 0 else 0


def _floats(embedding: object) -> npt.NDArray[np.float64]:
    """A vector given as a list of numbers, or in base64 as little-endian float32; empty when it is neither."""
    try:
        if isinstance(embedding, str):
            return np.frombuffer(base64.b64decode(embedding, validate=True), dtype="<f4").astype(np.float64)
        vector = np.asarray(embedding, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        return np.empty(0)
    return vector if vector.ndim == 1 else np.empty(0)
