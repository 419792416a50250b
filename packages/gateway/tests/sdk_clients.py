"""The SDKs, before a gateway, and the requests that they send."""

from typing import Any

import anthropic
import openai

from packages.gateway.tests.world import PATIENCE


class RequestRecorder:
    """Keeps the bodies that an SDK sends; a hook of its HTTP client."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []

    def __call__(self, request: Any) -> None:
        self.bodies.append(request.read())

    @property
    def body(self) -> bytes:
        """Of the only request."""
        (body,) = self.bodies
        return body


def openai_client(url: str, recorder: RequestRecorder, **options: Any) -> openai.OpenAI:
    """The openai SDK, which tries once."""
    carrier = openai.DefaultHttpxClient(event_hooks={"request": [recorder]}, trust_env=False)
    arguments = {"api_key": "not-the-targets", "max_retries": 0, "timeout": PATIENCE, **options}
    return openai.OpenAI(base_url=f"{url}/v1", http_client=carrier, **arguments)


def anthropic_client(url: str, recorder: RequestRecorder, **options: Any) -> anthropic.Anthropic:
    """The anthropic SDK, which tries once."""
    carrier = anthropic.DefaultHttpxClient(event_hooks={"request": [recorder]}, trust_env=False)
    arguments = {"api_key": "not-the-targets", "max_retries": 0, "timeout": PATIENCE, **options}
    return anthropic.Anthropic(base_url=url, http_client=carrier, **arguments)
