"""LiteLLM's spend logs: the table `LiteLLM_SpendLogs`, or the reply of `/spend/logs`.

A target is the `model_group`, the name that clients ask for, or else the `model`. Prompts are there
only if the proxy keeps them. `spend` is the cost in US dollars; an answer from LiteLLM's own cache
cost nothing and is left out. There are no scores.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from prefill_router.importers import call_logs
from prefill_router.importers.builder import DatasetBuilder, Place, TargetOutcome
from prefill_router.importers.columns import Columns

_CHATS = {
    *("", "completion", "acompletion", "text_completion", "atext_completion"),
    *("responses", "aresponses", "anthropic_messages"),
}
_HINT = "; LiteLLM keeps prompts if its config has general_settings: store_prompts_in_spend_logs"


def read(paths: Sequence[Path], into: DatasetBuilder, columns: Columns) -> None:
    """Read spend logs.

    Raises:
        FormatError: A source doesn't exist, or no call can be used.
    """
    del columns
    with call_logs.calls_of(paths, into, hint=f"{_HINT}: true") as (log, found):
        for path in found:
            with into.file(path):
                for place, record in call_logs.log_records(path, into):
                    with into.row(place):
                        _add(place, record, log)


def _add(place: Place, record: Mapping[str, Any], log: call_logs.CallLog) -> None:
    if (record.get("call_type") or "") not in _CHATS:
        log.leave_out("calls that aren't chats or completions")
        return
    if record.get("status") == "failure":
        log.leave_out("calls that failed")
        return
    if str(record.get("cache_hit")).lower() == "true":
        log.leave_out("answers from LiteLLM's cache")
        return
    outcome = TargetOutcome(
        input_tokens=call_logs.total(record, "prompt_tokens"),
        output_tokens=call_logs.total(record, "completion_tokens"),
        cost=call_logs.dollars(record.get("spend")) or None,  # 0 where the price is unknown
    )
    asked = (record.get("messages"), record.get("proxy_server_request"))
    texts = (call_logs.last_user_text(one) for one in asked)
    log.add(
        place,
        call=record.get("request_id"),
        prompt=next((text for text in texts if text), None),
        target=record.get("model_group") or record.get("model"),
        outcome=outcome,
    )
