"""Networks that spend by image: exits, cascades, budgets."""
