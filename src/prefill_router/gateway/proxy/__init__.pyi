from .circuit_breakers import Breakers as Breakers, BreakerState as BreakerState
from .forwarder import Forwarder as Forwarder, TargetState as TargetState
