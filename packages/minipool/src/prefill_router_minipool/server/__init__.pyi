from .app import (
    LOOPBACK as LOOPBACK,
    Record as Record,
    Server as Server,
    Stats as Stats,
    describe_pool as describe_pool,
    serve as serve,
    serve_pool as serve_pool,
)
from .effort import SAMPLES as SAMPLES
from .faults import (
    Faults as Faults,
    Persona as Persona,
    Rule as Rule,
    parse_rule as parse_rule,
    read_faults as read_faults,
)
from .generation import (
    Job as Job,
    Message as Message,
    Model as Model,
    Prompt as Prompt,
    Sampling as Sampling,
    ScriptedModel as ScriptedModel,
)
