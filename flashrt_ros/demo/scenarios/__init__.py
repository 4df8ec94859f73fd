"""One module for each part of the demo; each takes a scene and records what it found."""
