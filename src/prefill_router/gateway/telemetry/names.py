"""Names of traces: those of OpenTelemetry's conventions for generative AI, and the gateway's own.

The conventions still change; they are written here and nowhere else. Source: semantic conventions
for generative AI, https://opentelemetry.io/docs/specs/semconv/gen-ai/.
"""

from prefill_router.gateway.words import Endpoint

OPERATION = "gen_ai.operation.name"
PROVIDER = "gen_ai.provider.name"
REQUEST_MODEL = "gen_ai.request.model"
REQUEST_STREAM = "gen_ai.request.stream"
RESPONSE_MODEL = "gen_ai.response.model"
RESPONSE_ID = "gen_ai.response.id"
FIRST_CHUNK = "gen_ai.response.time_to_first_chunk"
CONVERSATION = "gen_ai.conversation.id"
INPUT_TOKENS = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
CACHED_TOKENS = "gen_ai.usage.cache_read.input_tokens"
REASONING_TOKENS = "gen_ai.usage.reasoning.output_tokens"
STATUS = "http.response.status_code"
ERROR = "error.type"

OPERATIONS: dict[Endpoint, str] = {
    "chat": "chat",
    "completions": "text_completion",
    "responses": "chat",
    "embeddings": "embeddings",
    "messages": "chat",
}
"""What the conventions call each endpoint's work."""

DECISION = "prefill_router.decision"
REASON = "prefill_router.reason"
FALLBACK = "prefill_router.fallback"
LAM = "prefill_router.lam"
CORRECTNESS = "prefill_router.correctness"
ESTIMATED_COST = "prefill_router.estimated_cost_usd"
COST = "prefill_router.cost_usd"
OUTCOME = "prefill_router.outcome"
CALL = "prefill_router.call"
END = "prefill_router.attempt.end"
ROUTER = "prefill_router.router"

ROUTE, FORECAST, DECIDE, ATTEMPT = "route", "forecast", "decide", "attempt"
"""What spans are called."""
