"""Analyses of networks and plans: accuracy by keep rate, insertion and deletion, recall, agreement, and more."""
