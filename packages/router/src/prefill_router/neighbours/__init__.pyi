from .neighbours import NeighbourIndex as NeighbourIndex, Vectors as Vectors
