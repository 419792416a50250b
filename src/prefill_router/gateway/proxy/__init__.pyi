from .circuit_breakers import Breakers as Breakers, BreakerState as BreakerState
from .deployments import RateHeadroom as RateHeadroom
from .forwarder import Forwarder as Forwarder, TargetState as TargetState
