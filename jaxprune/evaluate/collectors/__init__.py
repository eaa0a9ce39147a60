"""What is collected in the one pass over held-out images, one file each."""
