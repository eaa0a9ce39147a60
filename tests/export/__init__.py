"""Exports, of networks that the files here share."""
