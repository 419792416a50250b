from .depth import (
    DepthProfile as DepthProfile,
    EncoderSweep as EncoderSweep,
    depth_profile as depth_profile,
    encoder_labels as encoder_labels,
    neighbour_votes as neighbour_votes,
    sweep as sweep,
)
from .figures import (
    draw_depth as draw_depth,
    draw_geometry as draw_geometry,
    draw_sweep as draw_sweep,
)
from .options import (
    AllLayers as AllLayers,
    DepthOptions as DepthOptions,
    Poolings as Poolings,
    SweepOptions as SweepOptions,
)
