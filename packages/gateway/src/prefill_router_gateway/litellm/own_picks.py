"""LiteLLM's own picks of a deployment, whatever strategy is set on its Router.

Up to 1.109 a strategy takes the place of two methods of the Router, so the methods of before still
pick. Since 1.110 the Router has a core, which keeps the strategy as an attribute and asks it at
every pick, also when the methods of before are called. A strategy that calls them would be asked
again without end. There a second object picks: it shares all state of the core but the strategy.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, final

from prefill_router.errors import ConfigError

_PICK = ("get_available_deployment",)
_PICK_ASYNC = ("_core_async_get_available_deployment", "async_get_available_deployment")
"""LiteLLM's own methods; since 1.109 the async one's old name is deprecated."""
_STRATEGY = "_custom_strategy"
"""Where the core of 1.110 keeps the strategy."""


@final
@dataclass(frozen=True)
class OwnPicks:
    """The Router's picks without a strategy.

    Attributes:
        pick: Takes LiteLLM's arguments and returns an entry of the Router's `model_list`.
        pick_async: The same, awaited.
    """

    pick: Callable[..., Any]
    pick_async: Callable[..., Any]


def find_own_picks(litellm_router: Any) -> OwnPicks:
    """The Router's own picks, also where a strategy that keeps them in `own_picks` is set.

    Raises:
        ConfigError: It isn't a Router of LiteLLM.
    """
    core = getattr(litellm_router, "_core", None)
    if _STRATEGY in getattr(core, "__dict__", {}):
        view = _view_without_strategy(core)
        # the class's method: the core has the strategy's in its place
        return OwnPicks(partial(type(view).get_available_deployment, view), view.select)
    methods = [_find_method(litellm_router, names) for names in (_PICK, _PICK_ASYNC)]
    for method in methods:
        for layer in (method, getattr(method, "__wrapped__", None)):  # 1.109 wraps strategies
            earlier = getattr(getattr(layer, "__self__", None), "own_picks", None)
            if isinstance(earlier, OwnPicks):
                return earlier
    return OwnPicks(*methods)


def _view_without_strategy(core: Any) -> Any:
    """An object with the core's methods and its very state, for which no strategy is set."""
    kind = type(core)
    view_kind: Any = type(kind.__name__, (kind,), {_STRATEGY: property(lambda _: None)})
    view = object.__new__(view_kind)
    object.__setattr__(view, "__dict__", core.__dict__)
    return view


def _find_method(litellm_router: Any, names: Sequence[str]) -> Callable[..., Any]:
    method = next((m for m in (getattr(litellm_router, n, None) for n in names) if m), None)
    if not callable(method):
        raise ConfigError("this isn't a litellm.Router; give the Router whose requests to route")
    own: Callable[..., Any] = method
    return own
