"""How a model is split over ranks: the keys, and the mesh that follows from them. Engines carry it out."""
