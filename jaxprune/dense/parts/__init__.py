"""What dense networks are made of: heads, necks, decoders, inference."""
