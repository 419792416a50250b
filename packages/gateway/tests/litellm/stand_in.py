"""A stand-in for LiteLLM's Router, since LiteLLM itself takes seconds to load.

It calls a strategy as LiteLLM 1.106.2, 1.109.1 and 1.110.2 do; `benchmarks/litellm_real.py` has
LiteLLM itself do it.
"""

import functools
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

RETRIES = 3


def deployment(group: str, model: str, place: str) -> dict[str, Any]:
    """An entry of `model_list`."""
    return {
        "model_name": group,
        "litellm_params": {"model": model, "api_base": "http://127.0.0.1:9/v1"},
        "model_info": {"id": place},
    }


def turns(content: Any) -> list[Any]:
    """A text as messages."""
    return [{"role": "user", "content": content}] if isinstance(content, str) else list(content)


class StandIn:
    """Picks the first deployment of a group that doesn't cool down, until a strategy is set."""

    AWAITED = "async_get_available_deployment"
    REPEATS = False
    """Whether the arguments of an embedding have its input again."""

    def __init__(self, *deployments: dict[str, Any]) -> None:
        self.rows = list(deployments)
        self.cooling: set[str] = set()
        self.down: set[str] = set()
        self.picked: list[tuple[str, dict[str, Any]]] = []

    @property
    def model_list(self) -> list[dict[str, Any]]:
        return self.rows

    def set_custom_routing_strategy(self, strategy: Any) -> None:
        for name in ("get_available_deployment", "async_get_available_deployment"):
            setattr(self, name, getattr(strategy, name))

    def get_available_deployment(
        self,
        model: str,
        messages: Sequence[Any] | None = None,
        input: Any = None,  # noqa: A002
        specific_deployment: bool | None = False,
        request_kwargs: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        arguments = {"messages": messages, "input": input, "request_kwargs": request_kwargs}
        self.picked.append((model, {**arguments, "specific_deployment": specific_deployment}))
        for name_of in (lambda row: row["model_name"], lambda row: row["litellm_params"]["model"]):
            for row in self.rows:
                if name_of(row) == model and row["model_info"]["id"] not in self.cooling:
                    return row
        raise ValueError("No deployments available for selected model")

    async def async_get_available_deployment(self, model: str, **options: Any) -> dict[str, Any]:
        """Call the other method, as LiteLLM does with a strategy that isn't awaited."""
        return self.get_available_deployment(model=model, **options)

    def completion(self, model: str, messages: Any = "hi", **kwargs: Any) -> str:
        """The deployment that answers; one that is down is noted, and another is asked for."""
        specific = kwargs.pop("specific_deployment", None)
        for _ in range(1 + RETRIES):
            row = self.get_available_deployment(
                model=model,
                messages=turns(messages),
                specific_deployment=specific,
                request_kwargs=kwargs,
            )
            place = str(row["model_info"]["id"])
            if place not in self.down:
                return place
            note = {"model_group": model, "deployment_id": place, "exception_type": "APIError"}
            metadata = kwargs.setdefault("metadata", {})
            metadata["previous_models"] = (*metadata.get("previous_models", ()), note)
        raise ConnectionError(place)

    async def acompletion(self, model: str, messages: Any = "hi", **kwargs: Any) -> str:
        """The deployment that answers, awaited and tried once."""
        row = await getattr(self, self.AWAITED)(
            model=model,
            messages=turns(messages),
            specific_deployment=kwargs.pop("specific_deployment", None),
            request_kwargs=kwargs,
        )
        return str(row["model_info"]["id"])

    async def aembedding(self, model: str, texts: list[str] | str) -> str:
        """The deployment that embeds."""
        kwargs = {"metadata": {"model_group": model}, **({"input": texts} if self.REPEATS else {})}
        row = await getattr(self, self.AWAITED)(
            model=model, input=texts, specific_deployment=None, request_kwargs=kwargs
        )
        return str(row["model_info"]["id"])

    async def aresponses(self, model: str, text: Any, **kwargs: Any) -> str:
        """The deployment that answers in the Responses API: its input comes twice."""
        metadata = {"litellm_metadata": {"model_group": model}}
        row = await getattr(self, self.AWAITED)(
            model=model,
            messages=None,
            input=text,
            request_kwargs={"input": text, **metadata, **kwargs},
        )
        return str(row["model_info"]["id"])

    async def amoderation(self, model: str, text: str) -> str:
        """The deployment that checks a text."""
        row = await getattr(self, self.AWAITED)(
            model=model, request_kwargs={"model": model, "input": text}
        )
        return str(row["model_info"]["id"])

    async def aimage_generation(self, model: str) -> str:
        """The deployment that draws a picture: it gets no prompt of the request."""
        return await self.acompletion(model, "prompt")


class NewerStandIn(StandIn):
    """The Router since 1.109: two other names, and it wraps the methods of a strategy."""

    AWAITED = "_core_async_get_available_deployment"
    model_list = property()
    async_get_available_deployment = property()  # type: ignore[assignment]

    async def _core_async_get_available_deployment(
        self, model: str, **options: Any
    ) -> dict[str, Any]:
        return self.get_available_deployment(model=model, **options)

    def registry(self) -> Any:
        return SimpleNamespace(all=lambda: self.rows)

    def set_custom_routing_strategy(self, strategy: Any) -> None:
        self.get_available_deployment = _wrap(strategy.get_available_deployment)  # type: ignore[method-assign]
        setattr(self, self.AWAITED, _wrap(strategy.async_get_available_deployment))


class CoreStandIn(NewerStandIn):
    """The Router since 1.110: its core asks the strategy at each pick, also at its own methods'."""

    AWAITED = "select"
    REPEATS = True
    _core_async_get_available_deployment = property()  # type: ignore[assignment]

    def __init__(self, *deployments: dict[str, Any]) -> None:
        super().__init__(*deployments)
        self._core = _Core(functools.partial(StandIn.get_available_deployment, self))

    @property
    def get_available_deployment(self) -> Any:  # type: ignore[override]
        return self._core.get_available_deployment

    async def select(self, model: str, **options: Any) -> Any:
        return await self._core.select(model, **options)

    def set_custom_routing_strategy(self, strategy: Any) -> None:
        self._core.register_plugin(strategy)


class _Core:
    """The part of a Router that picks."""

    def __init__(self, pick: Any) -> None:
        self._custom_strategy: Any = None
        self._pick = pick

    def register_plugin(self, strategy: Any) -> None:
        self._custom_strategy = strategy
        self.__dict__["get_available_deployment"] = strategy.get_available_deployment

    def get_available_deployment(self, model: str, **options: Any) -> Any:
        strategy = self._custom_strategy
        pick = self._pick if strategy is None else strategy.get_available_deployment
        return pick(model=model, **options)

    async def select(self, model: str, **options: Any) -> Any:
        if self._custom_strategy is None:
            return self._pick(model=model, **options)
        return await self._custom_strategy.async_get_available_deployment(model=model, **options)


def _wrap(method: Any) -> Any:
    @functools.wraps(method)
    def call(*args: Any, **options: Any) -> Any:
        return method(*args, **options)

    return call
