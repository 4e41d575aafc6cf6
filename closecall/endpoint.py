"""An OpenAI-compatible `/v1/embeddings` service as an Encoder: a hosted or self-served model beside local ones."""

from __future__ import annotations

import base64
import math
import os
import time
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import numpy as np
import numpy.typing as npt
from pydantic import Field

from closecall.config import Settings
from closecall.encoder import Role, Vectors
from closecall.errors import ConfigError, ModelError
from closecall.manifest import sha256_json

if TYPE_CHECKING:
    import requests

PASSING = (408, 409, 429, 500, 502, 503, 504)
"""Statuses after which a request is sent again, later each time, or when the service's Retry-After says so."""
MESSAGE_CHARACTERS = 200


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

    @property
    def address(self) -> str:
        """Where requests go."""
        url = self.url.rstrip("/")
        return url if url.endswith("/embeddings") else f"{url}/embeddings"


class EndpointEncoder:
    """A service as an Encoder. Its weights are not known, so its vectors are kept under url, model and prompts."""

    weights_sha256 = ""

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
    def max_length_tokens(self) -> int:
        """0: the service does not say."""
        return 0

    @property
    def device(self) -> str:
        """The host of the service."""
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
        prompt = self.config.query_prompt if role == "query" else self.config.document_prompt
        size = self.config.batch_size
        parts = [self._ask([prompt + text for text in texts[at : at + size]]) for at in range(0, len(texts), size)]
        return np.concatenate(parts)

    def token_counts(self, texts: Sequence[str], role: Role) -> npt.NDArray[np.int64]:
        """int64 (n_texts,): words between spaces, since the service does not say how it cuts texts."""
        return np.asarray([len(text.split()) for text in texts], dtype=np.int64)

    def _ask(self, texts: Sequence[str]) -> Vectors:
        """The unit vectors of one request, in the order of the texts."""
        self._wait()
        body: dict[str, Any] = {"model": self.config.model, "input": list(texts), "encoding_format": "float"}
        if self.config.dimensions is not None:
            body["dimensions"] = self.config.dimensions
        answer = self._post(body)
        vectors = self._vectors(answer, len(texts))
        usage = answer.get("usage") or {}
        self.requests, self.tokens = (
            self.requests + 1,
            self.tokens + int(usage.get("total_tokens") or usage.get("prompt_tokens") or 0),
        )
        known = self.__dict__.setdefault("dimension", vectors.shape[1])
        if vectors.shape[1] != known:
            raise self._fault(f"gave vectors of {vectors.shape[1]} dimensions after {known}; is it one model?")
        return vectors

    def _wait(self) -> None:
        """Sleep until the next request may be sent."""
        if self.config.requests_per_minute is None:
            return
        now = time.monotonic()
        if now < self._next:
            time.sleep(self._next - now)
        self._next = max(now, self._next) + 60 / self.config.requests_per_minute

    @cached_property
    def _session(self) -> requests.Session:
        import requests
        from urllib3.util import Retry

        session = requests.Session()
        retry = Retry(
            total=self.config.retries,
            status_forcelist=PASSING,
            allowed_methods=None,
            backoff_factor=0.5,
            raise_on_status=False,
        )
        for scheme in ("http://", "https://"):
            session.mount(scheme, requests.adapters.HTTPAdapter(max_retries=retry))
        if (name := self.config.api_key_env) is not None:
            key = os.environ.get(name, "").strip()
            if not key:
                raise ConfigError(f"endpoint.api_key_env: the environment variable {name} is not set; export it")
            session.headers["Authorization"] = f"Bearer {key}"
        return session

    def _post(self, body: dict[str, Any]) -> dict[str, Any]:
        import requests

        try:
            answer = self._session.post(self.config.address, json=body, timeout=self.config.timeout_s)
        except requests.exceptions.Timeout:
            raise self._fault(f"gave no answer in {self.config.timeout_s:g} s; raise timeout_s or ask less") from None
        except requests.exceptions.RequestException as error:
            kind = type(error).__name__
            raise self._fault(f"cannot be reached ({kind}); is the service running, is the url right?") from None
        if not answer.ok:
            raise self._fault(self._refusal(answer))
        try:
            content = answer.json()
        except ValueError:
            raise self._fault("gave an answer that is no JSON; is the url that of an embeddings service?") from None
        if not isinstance(content, dict):
            raise self._fault("gave an answer without `data`; is the url that of an embeddings service?")
        return content

    def _refusal(self, answer: requests.Response) -> str:
        status = answer.status_code
        if status in (401, 403):
            return f"refused the key (status {status}); check the variable of api_key_env ({self.config.api_key_env})"
        if status in PASSING:
            return f"still had status {status} after {self.config.retries} retries; wait, or lower requests_per_minute"
        key = str(self._session.headers.get("Authorization", "")).removeprefix("Bearer ")
        said = " ".join(answer.text.split())
        said = (said.replace(key, "***") if key else said)[:MESSAGE_CHARACTERS]
        return f"refused the request (status {status}): {said or 'without a word'}"

    def _vectors(self, answer: dict[str, Any], count: int) -> Vectors:
        data = answer.get("data")
        if not isinstance(data, list) or len(data) != count:
            found = len(data) if isinstance(data, list) else "no"
            raise self._fault(f"gave {found} vectors for {count} texts; expected one each")
        if sorted(item.get("index", at) for at, item in enumerate(data)) != list(range(count)):
            raise self._fault("numbered its vectors wrongly; expected each index once")
        ordered = sorted(enumerate(data), key=lambda pair: pair[1].get("index", pair[0]))
        rows = [_floats(item.get("embedding")) for _, item in ordered]
        if len({row.size for row in rows}) != 1 or not rows[0].size:
            raise self._fault("gave vectors of different lengths; is it one model?")
        vectors = np.stack(rows)
        norms = np.linalg.norm(vectors, axis=1, keepdims=True)
        if not np.isfinite(vectors).all() or not (norms > 0).all():
            raise self._fault("gave a vector that is zero or not finite; look for empty texts")
        return np.ascontiguousarray(vectors / norms, dtype=np.float32)

    def _fault(self, what: str) -> ModelError:
        return ModelError(f"{self.config.address}: {self.config.model} {what}")


def _floats(embedding: object) -> npt.NDArray[np.float32]:
    """A vector given as a list of numbers, or in base64 as little-endian float32."""
    if isinstance(embedding, str):
        return np.frombuffer(base64.b64decode(embedding), dtype="<f4")
    try:
        return np.asarray(embedding, dtype=np.float32).reshape(-1)
    except (TypeError, ValueError):
        return np.empty(0, dtype=np.float32)
