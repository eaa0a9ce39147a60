"""An image and what shares its pixels, transformed together: its label map, later boxes and instance masks."""
