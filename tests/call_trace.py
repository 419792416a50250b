"""Which functions of this package a thread calls, in their order."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import prefill_router

PACKAGE = Path(prefill_router.__file__).parent


@dataclass
class Calls:
    """Calls of this package's functions, as `module:function`, the module without the package."""

    made: list[str] = field(default_factory=list)

    @property
    def modules(self) -> list[str]:
        """The modules, in the order in which they are entered first."""
        return list(dict.fromkeys(call.partition(":")[0] for call in self.made))

    def in_order(self, functions: list[str]) -> list[str]:
        """Those of these that are called, in the order of their first calls."""
        wanted = set(functions)
        return [call for call in dict.fromkeys(self.made) if call in wanted]

    def begin(self) -> None:
        """Note the present thread's calls from now on."""
        names: dict[str, str | None] = {}

        def note(frame: FrameType, event: str, _: object) -> None:
            if event != "call":
                return
            code = frame.f_code
            if code.co_filename not in names:
                place = Path(code.co_filename)
                is_ours = place.is_relative_to(PACKAGE)
                module = place.relative_to(PACKAGE).with_suffix("") if is_ours else place
                parts = [part for part in module.parts if part != "__init__"]
                names[code.co_filename] = ".".join(parts) if is_ours else None
            module_name = names[code.co_filename]
            if module_name is not None:
                self.made.append(f"{module_name}:{code.co_qualname}")

        sys.setprofile(note)

    @staticmethod
    def end() -> None:
        """Note no more."""
        sys.setprofile(None)


@contextmanager
def traced(
    run_there: Callable[[Callable[[], None]], None] = lambda call: call(),
) -> Iterator[Calls]:
    """The calls that are made until the block ends.

    Args:
        run_there: Runs something in the thread that is looked at; the present one by default.
    """
    calls = Calls()
    run_there(calls.begin)
    try:
        yield calls
    finally:
        run_there(calls.end)
