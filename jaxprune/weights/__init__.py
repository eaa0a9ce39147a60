"""Published weights: files read into networks and written from them, strictly in both directions."""
