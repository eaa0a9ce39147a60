"""Shared by the scorers: their base class, maps on the patch grid, networks that they read."""
