"""What one learns about a network and a plan: accuracy by keep rate, insertion and deletion, recall, agreement."""
